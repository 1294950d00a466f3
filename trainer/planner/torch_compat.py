# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
"""Private names of torch, read in torch 2.13.0: fake tensors, the graph that autograd computes, formulas of FLOP.

tests/integration/test_compat.py checks these names.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

__all__ = [
    "READ_IN",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensorMode",
    "TorchDispatchMode",
    "UnsupportedOperatorException",
    "flop_registry",
    "node_in_backward",
    "sdpa_backward_flop_count",
    "sdpa_flop_count",
    "sequence_number",
    "unset_fake_temporarily",
]

READ_IN = "2.13.0"


def sequence_number() -> int:
    """That which this thread's next node of autograd's graph gets."""
    return torch.autograd._get_sequence_nr()


def node_in_backward() -> int | None:
    """Sequence number of the node whose gradients are being computed; None outside of a backward."""
    node: Any = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()
