"""State of callbacks in a checkpoint."""

from collections.abc import Callable
from typing import Any

from ...core.callback_contract import CallbackContract
from ...core.checkpoints.sharded_checkpoint import CheckpointShards, TensorSlice
from ...core.hooks import own_hook
from ...core.state import RunState


def callback_states(state: RunState) -> dict[str, dict[str, Any]]:
    """State of each callback that has one, by its name in the config."""
    hooks = {name: own_hook(callback, CallbackContract.state_dict) for name, callback in state.callbacks.items()}
    return {name: state_dict() for name, state_dict in hooks.items() if state_dict is not None}


def callback_pieces(state: RunState) -> dict[str, TensorSlice]:
    """Slices of divided tensors of all callbacks, for this worker's own file."""
    found: dict[str, TensorSlice] = {}
    for name, callback in state.callbacks.items():
        pieces = own_hook(callback, CallbackContract.pieces)
        if pieces is not None:
            found.update({f"{_prefix(name)}{key}": piece for key, piece in pieces().items()})
    return found


def load_callback(name: str, callback: Any, saved: dict[str, Any], shards: CheckpointShards | None) -> None:
    """Give a callback its state of a checkpoint, if it takes one.

    Args:
        shards: files of single workers of the checkpoint.
    """
    load: Callable[..., None] | None = own_hook(callback, CallbackContract.load_state_dict)
    if load is not None:
        divided = own_hook(callback, CallbackContract.pieces) is not None
        load(saved, *((shards, _prefix(name)) if divided else ()))


def _prefix(name: str) -> str:
    return f"callbacks/{name}/"
