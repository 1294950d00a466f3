"""JSON Schema of the arguments that a constructor takes, from its signature."""

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from .signatures import SIMPLE, hints_of, only_an_object, takes_any

Node = dict[str, Any]

_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}
_LISTS = (list, tuple, Sequence)


def arguments_schema(constructor: Callable[..., Any]) -> tuple[dict[str, Node], bool]:
    """The schema of each argument, and whether the constructor takes further ones (**kwargs, or Python cannot tell)."""
    try:
        parameters = signature(constructor).parameters
    except (ValueError, TypeError):
        return {}, True
    hints = hints_of(constructor)
    named = [name for name, p in parameters.items() if p.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)]
    return {name: hint_schema(hints.get(name, Any)) for name in named}, takes_any(parameters)


def hint_schema(hint: Any) -> Node:
    """The plain values that an annotation allows, as in `signatures.fits`; {} (any) where it is not understood."""
    origin, members = get_origin(hint), get_args(hint)
    if hint in SIMPLE:
        return {"type": _TYPES[hint]}
    if origin is Literal:
        return {"enum": list(members)}
    if origin in (Union, UnionType):
        # a YAML file holds no objects of classes, so these do not count beside plain types
        plain = [hint_schema(member) for member in members if not only_an_object(member)]
        return {"anyOf": plain} if plain and all(plain) else {}
    if origin is tuple and members and members[-1] is not Ellipsis:
        items = [hint_schema(member) for member in members]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if hint in _LISTS or origin in _LISTS:
        return {"type": "array", "items": hint_schema(members[0])} if members else {"type": "array"}
    if hint is dict or origin is dict:
        return {"type": "object"}
    return {}
