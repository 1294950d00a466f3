"""Initial weights from another run or a file: init_from."""

from pathlib import Path
from typing import Any

import torch

from ..core.checkpoints.checkpoint_content import is_dense, not_finite
from ..core.checkpoints.checkpoint_io import newest, read, shards_of
from ..core.checkpoints.sharded_checkpoint import together


def load_weights(task: torch.nn.Module, source: str, own: dict[str, torch.Size]) -> str:
    """Start from weights of another run (init_from): every tensor whose name and shape match.

    Args:
        own: names and shapes of the task's tensors on one device.
        source: a run folder, a .ckpt file or a .safetensors file.

    Returns:
        One line that says what was taken and what was not.

    Raises:
        ValueError: nothing matches, or the file cannot be read.
    """
    weights = _weights_of(Path(source))
    names = {name: name if name in weights else name.removeprefix("model.") for name in own}
    dense = {name: value for name, value in weights.items() if is_dense(value)}
    taken = {name: dense[its] for name, its in names.items() if its in dense and dense[its].shape == own[name]}
    if not taken:
        raise ValueError(
            f"init_from={source}: none of its {len(weights)} tensors has name and shape of one of the {len(own)} here"
        )
    broken = not_finite(taken)
    if broken is not None:
        raise ValueError(f"init_from={source}: {broken} has NaN or infinite values")
    task.load_state_dict(taken, strict=False)
    left = sorted(set(own) - set(taken))
    rest = f"; started fresh: {', '.join(left[:6])}{' ...' if len(left) > 6 else ''}" if left else ""
    return f"init_from {source}: {len(taken)} of {len(own)} tensors{rest}"


def _weights_of(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if not path.is_file():
            raise ValueError(f"init_from={path} is not a file")
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"init_from={path} cannot be read: {error}") from error
    if path.is_dir():
        found = newest(path)
        if found is None:
            raise ValueError(f"init_from={path} holds no checkpoint")
        return _whole_model(*found)
    return _whole_model(path, read(path))


def _whole_model(path: Path, content: dict[str, Any]) -> dict[str, torch.Tensor]:
    divided = shards_of(path, content)
    return together(content["model"], divided, "model/")
