"""What hops: a complete training state, as the bytes of a checkpoint file."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from .. import checkpoint
from ..checkpoint_names import path_of
from ..discovery.memory import free_bytes
from ..state import RunState
from ..timing import StepTimes
from ..whole_file import whole_file

_COPIES = 4
"""Of a model in main memory at once: kept, on its way here, read, and a newer one that is written."""


@dataclass(frozen=True)
class Label:
    """What is known of a model between two visits without having it."""

    number: int
    """That of the visit which it comes from."""
    trial: int
    step: int
    """Optimizer steps done."""
    size: int
    """Bytes."""
    parameters: int
    """Bytes of them that are weights; what else a module keeps (the statistics of normalization) counts as the rest."""
    optimizer: int
    """Bytes of them that are tensors of the optimizer."""
    digest: str
    file: str | None = None
    """The checkpoint that it lies in, where it goes through the file system."""


@dataclass(frozen=True)
class Parcel:
    """A model between two visits.

    The bytes are those of a checkpoint: written to a file they are one, and `leyden resume` reads it.
    """

    label: Label
    data: torch.Tensor = field(repr=False)
    """Bytes, of uint8."""

    def verify(self) -> None:
        """
        Raises:
            DamagedHop: it is not what was sent.
        """
        if digest(self.data) != self.label.digest:
            raise DamagedHop(f"the model of trial {self.label.trial} at step {self.label.step} was damaged on its way")

    def content(self) -> dict[str, Any]:
        return torch.load(BytesIO(self.data.numpy().data), map_location="cpu", weights_only=True)


class DamagedHop(RuntimeError):
    """What has arrived is not what was sent."""


def digest(data: torch.Tensor) -> str:
    return sha256(data.numpy().data).hexdigest()


def pack(state: RunState, trial: int, number: int) -> Parcel:
    """
    Args:
        number: of the visit that ends.

    Raises:
        NotFinite: the weights have NaN or infinite values.
    """
    content = checkpoint.collect(state)
    checkpoint.refuse_not_finite(content["model"])
    # a checkpoint on disk begins a new account of time; a model that hops goes on with its own
    content |= {"shards": 0, "step_times": asdict(state.times)}
    moments = sum(tensor.nbytes for tensor in _tensors(content["optimizer"]))
    weights = sum(parameter.nbytes for parameter in state.task.parameters())
    content |= {name: _together(content[name]) for name in ("model", "optimizer")}
    written = BytesIO()
    torch.save(content, written)
    data = torch.frombuffer(written.getbuffer(), dtype=torch.uint8)
    return Parcel(Label(number, trial, state.step, len(data), weights, moments, digest(data)), data)


def _together(tree: Any) -> Any:
    """The same values, all tensors of a type being views of one: one is copied, written and read faster than many."""
    flat: dict[torch.dtype, torch.Tensor] = {}
    tensors = _tensors(tree)
    for dtype in {tensor.dtype for tensor in tensors}:
        flat[dtype] = torch.cat([tensor.detach().flatten() for tensor in tensors if tensor.dtype == dtype]).cpu()
    taken = dict.fromkeys(flat, 0)

    def view(tensor: torch.Tensor) -> torch.Tensor:
        begin = taken[tensor.dtype]
        taken[tensor.dtype] = end = begin + tensor.numel()
        return flat[tensor.dtype][begin:end].view(tensor.shape)

    return _mapped(tree, view)


def _tensors(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _mapped(tree, lambda tensor: found.append(tensor) or tensor)
    return found


def _mapped(tree: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of nested dicts and lists with another tensor in each one's place."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {name: _mapped(value, function) for name, value in tree.items()}
    return [_mapped(value, function) for value in tree] if isinstance(tree, list) else tree


def unpack(state: RunState, content: dict[str, Any], path: Path | None) -> None:
    """Put a model where it was when it was packed, or saved in a file."""
    checkpoint.restore(state, path, content)
    if path is None and "step_times" in content:
        state.times = StepTimes(**content["step_times"])


def save(parcel: Parcel, run_dir: Path) -> Path:
    """Keep it as a checkpoint of its run, in place of one of the same step."""
    path = path_of(run_dir, parcel.label.step)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, "wb") as file:
        file.write(parcel.data.numpy())
    if checkpoint.saved(run_dir)[0] == path:
        checkpoint.point_last_at(path)
    return path


def short_of_memory(size: int, workers: int, root: Path = Path("/")) -> bool:
    """Whether models of this size had better be on disk than in this host's memory.

    Args:
        size: bytes.
        workers: of this host.
    """
    free = free_bytes(root)
    return free is not None and free < _COPIES * size * workers
