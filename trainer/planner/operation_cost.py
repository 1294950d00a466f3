"""FLOP, memory traffic and launches of one operation of ATen."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .quantities import Cost
from .torch_compat import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten
NOTHING = Cost()

_ALLOCATES = {
    aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten.resize_, aten.set_,
    aten.lift_fresh, aten._unsafe_view, aten._reshape_alias, aten._local_scalar_dense, aten.is_same_size,
}  # fmt: skip
"""Operations that compute nothing: of a device's memory they read and write nothing."""
_WRITES_ONLY = {aten.copy_, aten.fill_, aten.zero_, aten._foreach_copy_, aten._foreach_zero_}
"""Operations in place that do not read what they replace."""


def _attention(*arguments: Any, out_val: Any, **more: Any) -> int:
    query, key, value = arguments[:3]
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(*arguments: Any, out_val: Any, **more: Any) -> int:
    gradient, query, key, value = arguments[:4]
    return sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape)


_FLOP: dict[Any, Callable[..., int]] = {
    **flop_registry,
    # the CPU's kernel of what CUDA's kernels do, which torch's counter leaves out
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


class _Kind(NamedTuple):
    """What the schema of an operation says."""

    computes: bool
    flop: Callable[..., int] | None
    written: tuple[int, ...]
    """Positions of arguments that are written."""
    written_names: tuple[str, ...]
    """Names of those that are given by name."""
    reads_written: bool


def cost_of(operation: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> Cost:
    """Cost of an operation on tensors, fake ones or not.

    FLOP are those of matrix products, convolutions and attention, as torch's FlopCounterMode counts them; bytes those
    of the elements that the arguments and the result have, each read or written once, two of them in place. Views and
    allocations cost nothing; everything else is one launch.

    Args:
        operation: an OpOverload, as `__torch_dispatch__` gets it.
    """
    kind = _kind(operation)
    if not kind.computes:
        return NOTHING
    given = [arguments[i] for i in kind.written if i < len(arguments)] + [
        named[name] for name in kind.written_names if name in named
    ]
    written = {id(tensor): tensor for tensor in _tensors(given)}
    inputs = {id(tensor): tensor for tensor in _tensors((arguments, named))}
    moved = sum(_size(t) for key, t in inputs.items() if kind.reads_written or key not in written)
    outputs = {id(tensor): tensor for tensor in _tensors((result,))}
    moved += sum(_size(t) for key, t in {**outputs, **written}.items() if key in written or key not in inputs)
    flop = 0 if kind.flop is None else kind.flop(*arguments, **named, out_val=result)
    return Cost(float(flop), float(moved), 1) if inputs or outputs else NOTHING


@cache
def _kind(operation: Any) -> _Kind:
    packet = operation.overloadpacket
    schema = operation._schema
    written = [(i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
    computes = not operation.is_view and packet not in _ALLOCATES and operation.namespace != "prim"
    return _Kind(
        computes, _FLOP.get(packet), tuple(i for i, _ in written), tuple(name for _, name in written),
        packet not in _WRITES_ONLY,
    )  # fmt: skip


def _tensors(values: Any) -> Iterable[Tensor]:
    """Tensors in nested lists, tuples and dicts."""
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list | dict):
            yield from _tensors(value)


def _size(tensor: Tensor) -> int:
    """Bytes of its elements; those of an expanded tensor once."""
    size = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= length if stride or length == 0 else 1
    return size
