"""What a checkpoint must hold before a training goes on from it: known keys of known types, and finite weights."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch

from ...runs.checkpoints import step_of

_POSITION = ("epoch", "step", "step_in_epoch", "samples")
_OPTIONAL_POSITION = ("validated_at", "offset")
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "model": dict, "optimizer": dict, "position": dict, "precision": dict, "metrics": dict, "callbacks": dict,
    "data": dict, "epoch_metric_objects": dict, "schedules": list, "random": list, "threads": list, "sessions": list,
    "content": str, "seconds": (int, float), "shards": int, "servers": int,
}  # fmt: skip
_REQUIRED = ("model", "optimizer", "position", "schedules", "precision", "metrics", "callbacks", "random",
             "epoch_metrics", "epoch_metric_objects")  # fmt: skip
_LARGEST = 1 << 53
_MAX_FILES = 1 << 20


def fault_of_types(content: Mapping[Any, Any]) -> str:
    """Why a content is no checkpoint's; "" if its known keys have the right types. A file of weights has only some."""
    for key, kind in _TYPES.items():
        value = content.get(key)
        if key in content and (not isinstance(value, kind) or isinstance(value, bool)):
            return f"its `{key}` is of type {type(value).__name__}"
    if not 0 <= content.get("seconds", 0) < _LARGEST:
        return f"its `seconds` are {_format_value(content['seconds'])}"
    if not all(
        isinstance(name, str) and type(value) in (int, float) for name, value in content.get("metrics", {}).items()
    ):
        return "its `metrics` are no names with numbers"
    if "model" not in content:
        return "it holds no model"
    if not all(isinstance(name, str) for name in content["model"]):
        return "names of its model's tensors are no texts"
    fault = _fault_of_optimizer(content.get("optimizer", {})) or _fault_of_files(content)
    if fault:
        return fault
    return _fault_of_position(content["position"]) if "position" in content else ""


def _fault_of_optimizer(optimizer: Mapping[Any, Any]) -> str:
    state, groups = optimizer.get("state", {}), optimizer.get("param_groups", [])
    if not isinstance(state, dict) or not all(isinstance(kept, dict) for kept in state.values()):
        return "its optimizer's state is none of parameters"
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        return "its optimizer's groups are none of parameters"
    return ""


def _fault_of_files(content: Mapping[Any, Any]) -> str:
    for kind in ("shards", "servers"):
        if not 0 <= content.get(kind, 0) < _MAX_FILES:
            return f"it declares {_format_value(content[kind])} {kind}"
    if content.get("shards") and "step" not in content.get("position", {}):
        return "its position lacks step, which names its workers' files"
    return ""


def fault_of_server(content: Any) -> str:
    """Why a content is no parameter server's; "" if it is one."""
    if not isinstance(content, dict):
        return "it holds no server's state"
    values, version, columns = (content.get(key) for key in ("values", "version", "optimizer"))
    if not is_dense(values) or values.dim() != 1 or not values.is_floating_point():
        return "its `values` are no vector"
    if not _finite(values):
        return "its `values` are NaN or infinite"
    if type(version) is not int or not 0 <= version < _LARGEST:
        return f"its `version` is {_format_value(version)}"
    if not isinstance(columns, list) or not all(_is_column(column) for column in columns):
        return "its `optimizer` is none of a server"
    return ""


def _is_column(column: Any) -> bool:
    """Whether this is a name and a finite value of each element, or one of all."""
    if not isinstance(column, list) or len(column) != 2 or not isinstance(column[0], str):
        return False
    value = column[1]
    if is_dense(value):
        return not value.is_floating_point() or _finite(value)
    return type(value) in (int, bool, type(None)) or (type(value) is float and math.isfinite(value))


def is_dense(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether this is a tensor with all of its values in main memory."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return value.device.type == "cpu" and not value.is_quantized and not value.is_nested


def fault_of_training(path: Path, content: Mapping[str, Any]) -> str:
    """Why no training can go on from a content whose types are right; "" if one can."""
    missing = [key for key in _REQUIRED if key not in content]
    if missing:
        return f"it lacks {', '.join(missing)}"
    position = content["position"]
    absent = [key for key in _POSITION if key not in position]
    if absent:
        return f"its position lacks {', '.join(absent)}"
    named = step_of(path)
    if named not in (-1, position["step"]):
        return f"its name says step {named}, its position {position['step']}"
    if position["step"] > position["samples"]:
        return f"its position has {position['step']} steps of {position['samples']} samples"
    return ""


def _fault_of_position(position: Mapping[Any, Any]) -> str:
    unknown = [_format_value(key) for key in position if key not in (*_POSITION, *_OPTIONAL_POSITION)]
    if unknown:
        return f"its position has unknown keys: {', '.join(unknown)[:60]}"
    for key, value in position.items():
        least = {"validated_at": -1, "offset": -_LARGEST}.get(str(key), 0)
        if type(value) is not int or not least <= value < _LARGEST:
            return f"its position has {key}={_format_value(value)}"
    return ""


def _format_value(value: Any) -> str:
    """A value for a message; of one that is neither text nor number its type, since its text may be endless."""
    return str(value)[:40] if type(value) in (int, float, str) else type(value).__name__


def misfit(content: Mapping[str, Any], divided: Mapping[str, Any], own: Mapping[str, torch.Size]) -> str:
    """Why a checkpoint's weights are not those of this network; "" if they are.

    Args:
        divided: shapes of the tensors in workers' files, by name.
        own: shapes of the network's tensors on one device.
    """
    weights = {name: value.shape for name, value in content["model"].items() if isinstance(value, torch.Tensor)}
    weights.update({name: torch.Size(shape) for name, shape in divided.items()})
    missing = [name for name in own if name not in weights]
    if missing:
        return f"it has no {missing[0]}, which the model has" + (f" ({len(missing)} in all)" if missing[1:] else "")
    for name, shape in own.items():
        if weights[name] != shape:
            return f"its {name} has shape {tuple(weights[name])}, the model's has {tuple(shape)}"
    return ""


def not_finite(weights: Mapping[str, Any]) -> str | None:
    """The name of a tensor with NaN or infinite values; None if there is none."""
    for name, value in weights.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point() and not _finite(value):
            return name
    return None


def _finite(values: torch.Tensor) -> bool:
    values = values.float() if values.dtype.itemsize == 1 else values  # float8 has no sum
    # a finite sum proves finite values, in one read from the device; an infinite one may be an overflow: check each
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())
