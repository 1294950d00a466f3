# pyright: reportPrivateUsage=false
"""Private names of torch, read in torch 2.13.0: fake tensors, by which a model is tried before a run. Imports torch."""

from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = ["READ_IN", "FakeTensorMode"]

READ_IN = "2.13.0"
