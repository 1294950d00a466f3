"""Whether `leyden resume` may change a key: declared where the key is defined.

A field of the schema says so by `RESUMABLE` in its annotation, for itself and all below it. A class of Leyden's lists
such arguments in an attribute of that name. What says nothing is part of the run's identity, and so is every argument
of a user-provided class.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from ...config.schema import Config, Target
from ...hardware.schema import RESUMABLE

_OURS = "leyden."


def may_change(key: str, values: Mapping[str, Any]) -> bool:
    """Whether a resumed run may have another value of a key. `values`: those of the run."""
    model: type[BaseModel] | None = Config
    node: Any = values
    for part in key.split("."):
        if model is None:
            return False
        field = model.model_fields.get(part)
        if field is not None:
            if RESUMABLE in field.metadata:
                return True
            model = next(_models(field.annotation), None)
        elif not issubclass(model, Target) or not isinstance(node, Mapping):
            return False
        elif "_target_" in node:
            return part in resumable_arguments(str(node["_target_"]))
        # else the name of a callback or logger
        node = node.get(part) if isinstance(node, Mapping) else None
    return False


@cache
def resumable_arguments(target: str) -> frozenset[str]:
    """Arguments of a class that a resumed run may change.

    Read from its source: importing it may take torch, for which a mistake in a command need not wait.
    """
    module, _, name = target.rpartition(".")
    spec = find_spec(module) if target.startswith(_OURS) else None
    source = "" if spec is None or spec.origin is None else Path(spec.origin).read_text()
    for cls in ast.parse(source).body:
        for line in cls.body if isinstance(cls, ast.ClassDef) and cls.name == name else ():
            if isinstance(line, ast.Assign) and [ast.unparse(each) for each in line.targets] == ["RESUMABLE"]:
                return frozenset(ast.literal_eval(line.value))
    return frozenset()


def resumable_fields(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Keys of the schema that a resumed run may change; of a whole node its own alone."""
    for name, field in model.model_fields.items():
        if RESUMABLE in field.metadata:
            yield prefix + name
        else:
            for inner in _models(field.annotation):
                yield from resumable_fields(inner, f"{prefix}{name}.")


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Schemas that an annotation is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
