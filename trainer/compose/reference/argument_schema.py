"""JSON Schema of the arguments that a constructor takes, from its signature."""

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ...config.option_classes import hints_of, option_class, options_of
from ...config.targets import takes_any
from ..signatures import SIMPLE, only_an_object

Node = dict[str, Any]

_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}
_LISTS = (list, tuple, Sequence)


def arguments_schema(constructor: Callable[..., Any]) -> tuple[dict[str, Node], bool]:
    """The schema of each argument, and whether further ones are possible (**kwargs, or no signature)."""
    try:
        parameters = signature(constructor).parameters
    except (ValueError, TypeError):
        return {}, True
    hints = hints_of(constructor)
    named = [name for name, p in parameters.items() if p.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)]
    return {name: hint_schema(hints.get(name, Any)) for name in named}, takes_any(parameters)


def hint_schema(hint: Any) -> Node:
    """The plain values that an annotation allows, as in `signatures.fits`; {} (any) if it is not understood."""
    origin, members = get_origin(hint), get_args(hint)
    if option_class(hint) is hint:
        fields = {name: hint_schema(member) for name, member in options_of(hint).items()}
        return {"type": "object", "properties": fields, "additionalProperties": False}
    if hint in SIMPLE:
        return {"type": _TYPES[hint]}
    if origin is Literal:
        return {"enum": list(members)}
    if origin in (Union, UnionType):
        # a YAML value is never an object, so classes next to plain types are ignored
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
