"""Constructor arguments annotated with a dataclass of options, which are nodes of keys in YAML."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def hints_of(constructor: Any) -> dict[str, Any]:
    """Annotations of the constructor's parameters; {} if they cannot be resolved."""
    try:
        return get_type_hints(constructor.__init__ if isinstance(constructor, type) else constructor)
    except Exception:  # Annotations may name imports made only for type checkers.
        return {}


def option_class(hint: Any) -> type[Any] | None:
    """The dataclass that an annotation is, or has among its members; None without one."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return next((member for member in members if isinstance(member, type) and is_dataclass(member)), None)


def options_of(found: type[Any]) -> dict[str, Any]:
    """Annotations of a dataclass's fields by name."""
    hints = get_type_hints(found)
    return {field.name: hints[field.name] for field in fields(found) if field.init}


def with_options(constructor: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, with a dataclass in place of each mapping that the constructor annotates as one."""
    hints = hints_of(constructor) if any(isinstance(value, dict) for value in arguments.values()) else {}
    found = {name: option_class(hints.get(name)) for name in arguments}
    return {
        name: options(**value) if (options := found[name]) is not None and isinstance(value, dict) else value
        for name, value in arguments.items()
    }
