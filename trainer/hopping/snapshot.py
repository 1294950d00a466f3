"""Snapshot of a model that hops: its complete training state, as the bytes of a checkpoint file."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from ..base.atomic_file import atomic_file
from ..core.checkpoints import checkpoint_io
from ..core.state import RunState
from ..core.step_timer import StepTimes
from ..engine.checkpoints import checkpoint
from ..hardware.discovery.memory import free_bytes
from ..runs import checkpoints
from ..runs.checkpoints import path_of

_COPIES = 4
"""Maximum copies of a model in main memory: stored, incoming, being unpacked, and a newer one being packed."""


@dataclass(frozen=True)
class SnapshotMetadata:
    """Description of a snapshot, without its bytes."""

    number: int
    """That of the sub-epoch that it was made by."""
    trial: int
    step: int
    """Optimizer steps done."""
    size: int
    """Bytes."""
    parameters: int
    """Bytes of the weights; other state of modules (running statistics of normalization) is not included."""
    optimizer: int
    """Bytes of the optimizer's tensors."""
    digest: str
    file: str | None = None
    """Path of the checkpoint that holds it, if it moves through the file system."""


@dataclass(frozen=True)
class Snapshot:
    """Model between two sub-epochs.

    The bytes are those of a checkpoint, so that whatever ends the run, a worker saves them as they are and
    `leyden resume` reads them.
    """

    metadata: SnapshotMetadata
    data: torch.Tensor = field(repr=False)
    """Bytes, of uint8."""

    def verify(self) -> None:
        """
        Raises:
            DamagedSnapshot: the bytes are not those that were packed.
        """
        # a wrong bit in a weight would go unnoticed: the model would train on, and nothing could be reproduced
        if digest(self.data) != self.metadata.digest:
            trial, step = self.metadata.trial, self.metadata.step
            raise DamagedSnapshot(f"the model of trial {trial} at step {step} was damaged on its way")

    def content(self) -> dict[str, Any]:
        return torch.load(BytesIO(self.data.numpy().data), map_location="cpu", weights_only=True)


class DamagedSnapshot(RuntimeError):
    """The digest of a received snapshot differs."""


def digest(data: torch.Tensor) -> str:
    return sha256(data.numpy().data).hexdigest()


def pack(state: RunState, trial: int, number: int) -> Snapshot:
    """
    Args:
        number: of the sub-epoch that ends.

    Raises:
        NotFinite: the weights have NaN or infinite values.
    """
    content = checkpoint.collect(state)
    checkpoint_io.refuse_not_finite(content["model"])
    # step times restart at a checkpoint, which begins another session; a hop continues the same one
    content |= {"shards": 0, "step_times": asdict(state.times)}
    optimizer = sum(tensor.nbytes for tensor in _tensors(content["optimizer"]))
    weights = sum(parameter.nbytes for parameter in state.task.parameters())
    content |= {name: _coalesce(content[name]) for name in ("model", "optimizer")}
    buffer = BytesIO()
    torch.save(content, buffer)
    data = torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)
    return Snapshot(SnapshotMetadata(number, trial, state.step, len(data), weights, optimizer, digest(data)), data)


def _coalesce(tree: Any) -> Any:
    """The same values, tensors of a dtype being views of one: it is copied and serialized faster than many."""
    flat: dict[torch.dtype, torch.Tensor] = {}
    tensors = _tensors(tree)
    for dtype in {tensor.dtype for tensor in tensors}:
        flat[dtype] = torch.cat([tensor.detach().flatten() for tensor in tensors if tensor.dtype == dtype]).cpu()
    offsets = dict.fromkeys(flat, 0)

    def view(tensor: torch.Tensor) -> torch.Tensor:
        begin = offsets[tensor.dtype]
        offsets[tensor.dtype] = end = begin + tensor.numel()
        return flat[tensor.dtype][begin:end].view(tensor.shape)

    return _map_tensors(tree, view)


def _tensors(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _map_tensors(tree, lambda tensor: found.append(tensor) or tensor)
    return found


def _map_tensors(tree: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Copy of nested dicts and lists with a function applied to each tensor."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {name: _map_tensors(value, function) for name, value in tree.items()}
    return [_map_tensors(value, function) for value in tree] if isinstance(tree, list) else tree


def unpack(state: RunState, content: dict[str, Any], path: Path | None) -> None:
    """Restore a model from a snapshot, or from the checkpoint at `path`."""
    checkpoint.restore(state, path, content)
    if path is None and "step_times" in content:
        state.times = StepTimes(**content["step_times"])


def save(snapshot: Snapshot, run_dir: Path) -> Path:
    """Write a snapshot as a checkpoint of its run, replacing one of the same step."""
    path = path_of(run_dir, snapshot.metadata.step)
    path.parent.mkdir(exist_ok=True)
    with atomic_file(path, "wb") as file:
        file.write(snapshot.data.numpy())
    if checkpoints.saved_checkpoints(run_dir)[0] == path:
        checkpoint_io.point_last_at(path)
    return path


def short_of_memory(size: int, workers: int, root: Path = Path("/")) -> bool:
    """Whether snapshots of this size should move through files.

    A host that swaps slows every worker, and one out of memory loses the run; the file system costs a hop only.

    Args:
        size: bytes.
        workers: of this host.
    """
    free = free_bytes(root)
    return free is not None and free < _COPIES * size * workers
