"""Values of all workers, exchanged as JSON in a tensor of bytes.

Not torch's `*_object` collectives: they unpickle what arrives, and pickled bytes of a stranger can run code.
"""

import base64
import json
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.strategies.parallel import ParallelStrategy
from torch import Tensor

_TENSOR = "__tensor__"
_MAX_BYTES = 1 << 30


def encode(value: Any) -> bytes:
    """JSON of None, bools, numbers, strings, lists, dicts with names, and tensors. A tuple becomes a list.

    Raises:
        TypeError: any other value.
    """
    return json.dumps(value, default=_tensor_to_json).encode()


def decode(data: bytes) -> Any:
    """The value of `encode`; tensors are on the CPU.

    Raises:
        ValueError: the bytes are no such JSON.
    """
    try:
        return json.loads(data, object_hook=_tensor_of_json)
    except RecursionError:
        raise ValueError("values nested too deeply") from None


def all_gather_values(value: Any, group: Any = None) -> list[Any]:
    """Every worker's value, by rank. Collective.

    Args:
        value: as `encode` takes it.
        group: a process group; None: the default one.

    Raises:
        ValueError: what another worker has sent is no such value.
    """
    device = _device(group)
    data = bytearray(encode(value))
    sizes = _all_gather(torch.tensor([len(data)], device=device), group)
    lengths = [int(size) for size in sizes]
    if max(lengths) > _MAX_BYTES or min(lengths) < 1:
        raise ValueError(f"values of {lengths} bytes, of at most {_MAX_BYTES}")
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(data)] = torch.frombuffer(data, dtype=torch.uint8)
    gathered = _all_gather(padded.to(device), group)
    return [decode(one[:size].cpu().numpy().tobytes()) for one, size in zip(gathered, lengths, strict=True)]


def broadcast_value(value: Any, strategy: Any) -> Any:
    """The first worker's value on every worker. Collective.

    In place of the `broadcast` of Fabric's strategies, which unpickles what it receives.

    Args:
        value: as `encode` takes it; of the other workers it is not read.
        strategy: whose workers these are; one that is not parallel has one.

    Raises:
        ValueError: what the first worker has sent is no such value.
    """
    if not isinstance(strategy, ParallelStrategy):
        return strategy.broadcast(value)
    if not dist.is_initialized():
        return value
    device = _device(None)
    is_first = dist.get_rank() == 0
    data = encode(value) if is_first else b""
    size = torch.tensor([len(data)], device=device)
    dist.broadcast(size, 0)
    if not 1 <= (length := int(size)) <= _MAX_BYTES:
        raise ValueError(f"a value of {length} bytes, of at most {_MAX_BYTES}")
    buffer = (
        torch.frombuffer(bytearray(data), dtype=torch.uint8) if is_first else torch.zeros(length, dtype=torch.uint8)
    )
    buffer = buffer.to(device)
    dist.broadcast(buffer, 0)
    return value if is_first else decode(buffer.cpu().numpy().tobytes())


def _device(group: Any) -> torch.device:
    """The device whose tensors the group's backend sends."""
    if "nccl" in dist.get_backend(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _all_gather(tensor: Tensor, group: Any) -> list[Tensor]:
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, tensor, group=group)
    return gathered


def _tensor_to_json(value: Any) -> dict[str, Any]:
    if not isinstance(value, Tensor):
        raise TypeError(f"{type(value).__name__} is no plain value")
    flat = value.detach().cpu().contiguous().flatten().view(torch.uint8)
    data = base64.b64encode(flat.numpy().tobytes()).decode()
    return {_TENSOR: str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "data": data}


def _tensor_of_json(value: dict[str, Any]) -> Any:
    if _TENSOR not in value:
        return value
    dtype = getattr(torch, str(value[_TENSOR]), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {value[_TENSOR]!r}")
    try:
        data = bytearray(base64.b64decode(value["data"], validate=True))
        flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return flat.view(dtype).reshape(value["shape"])
    except (RuntimeError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"no tensor: {str(error)[:200]}") from error
