"""Arguments of every `_target_` held against its constructor, without building anything."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from .config import Config, Target
from .errors import Problem, listed, nearest, spelled
from .faults import raised_at
from .known_names import DATASET_SAYS
from .known_names import known as known_name
from .targets import GIVEN, locate
from .validation import NO_IMPORT_PATH


def target_nodes(config: Config) -> Iterator[tuple[str, Target | Problem]]:
    """Dotted key and node of every class that the config names, arguments that are classes included."""
    for group in Config.model_fields:
        value = getattr(config, group)
        nodes = value.items() if group in ("callbacks", "logger") else [("", value)]
        for name, node in nodes:
            if isinstance(node, Target):
                yield from _with_nested(f"{group}.{name}" if name else group, node)


def _with_nested(key: str, node: Target) -> Iterator[tuple[str, Target | Problem]]:
    yield key, node
    for name, value in node.arguments.items():
        yield from _nested(f"{key}.{name}", value)


def _nested(key: str, value: Any) -> Iterator[tuple[str, Target | Problem]]:
    if isinstance(value, Mapping) and "_target_" in value:
        try:
            yield from _with_nested(key, Target.model_validate(value))
        except ValidationError:
            yield key, Problem(f"{key}._target_", NO_IMPORT_PATH, value["_target_"])
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _nested(f"{key}.{name}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nested(f"{key}.{index}", item)


def signature_problems(config: Config) -> Iterator[Problem]:
    """What the constructors of all named classes would not take."""
    for key, node in target_nodes(config):
        if isinstance(node, Problem):
            yield node
        else:
            yield from node_problems(key, node)


def node_problems(key: str, node: Target) -> Iterator[Problem]:
    """What is wrong with one class or its arguments."""
    found = find(key, node)
    if isinstance(found, Problem):
        yield found
        return
    parameters = _parameters(found)
    if parameters is None:
        return
    hints = hints_of(found)
    given = _given(key)
    for name, value in node.arguments.items():
        if name in parameters:
            yield from _type_problem(f"{key}.{name}", value, hints.get(name, Any))
        elif not takes_any(parameters):
            yield _unknown_argument(key, name, value, found, node, [p for p in _named(parameters) if p not in given])
    supplied_later = node.partial and not given
    for name in [] if supplied_later else set(_required(parameters)) - {*node.arguments, *given}:
        yield Problem(f"{key}.{name}", f"{_name(found)} cannot be built without it", remedy=f"+{key}.{name}=...")


def unknown_arguments(key: str, node: Target) -> list[str]:
    """Arguments of a node that its class does not take; none where there is no such class, or it takes any."""
    found = find(key, node)
    parameters = None if isinstance(found, Problem) else _parameters(found)
    if parameters is None or takes_any(parameters):
        return []
    return [name for name in node.arguments if name not in parameters]


def _given(key: str) -> tuple[str, ...]:
    group, _, name = key.partition(".")
    is_group_node = not name or (group in ("callbacks", "logger") and "." not in name)
    return GIVEN.get(group, ()) if is_group_node else ()


def find(key: str, node: Target) -> Callable[..., Any] | Problem:
    """The class or function that a node names, or why there is none."""
    try:
        found = locate(node.target)
    except ValueError as error:
        return Problem(f"{key}._target_", f"{error}{_meant(node.target)}", node.target)
    except Exception as error:  # A user's module may raise anything while it is imported.
        text = f"importing it failed: {type(error).__name__}: {error}{raised_at(error)}"
        return Problem(f"{key}._target_", text, node.target)
    if not callable(found):
        return Problem(f"{key}._target_", "is neither a class nor a function", node.target)
    return found


def parameters_of(constructor: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Constructor parameters by name; empty where Python cannot tell."""
    return _parameters(constructor) or {}


def is_a(constructor: Any, class_name: str) -> bool:
    """Whether a class of this name is among its bases, compared without importing that class."""
    return any(base.__name__ == class_name for base in getattr(constructor, "__mro__", ()))


def _parameters(constructor: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(constructor).parameters
    except (ValueError, TypeError):
        return None


def hints_of(constructor: Any) -> dict[str, Any]:
    """Annotations of the constructor's parameters; {} where they cannot be resolved."""
    try:
        return get_type_hints(constructor.__init__ if isinstance(constructor, type) else constructor)
    except Exception:  # Annotations may name what is only imported for type checkers.
        return {}


def takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether there is a **kwargs among them."""
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _named(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


def _required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name in _named(parameters) if parameters[name].default is inspect.Parameter.empty]


def _name(constructor: Any) -> str:
    return getattr(constructor, "__name__", str(constructor))


def _unknown_argument(key: str, name: str, value: Any, found: Any, node: Target, takes: Sequence[str]) -> Problem:
    declared = [field for field in type(node).model_fields if field not in ("target", "partial")]
    close = nearest(name, [*takes, *declared])
    text = f"{_name(found)} takes no argument {name!r}"
    remedy = f"{key}.{close}={spelled(value)}" if close else LEAVE_OUT
    known = known_name(name, spelled(value))
    if close:
        text += f"; did you mean {close}?"
    elif key == "model" and nearest(name, [*DATASET_SAYS, *GIVEN["model"]], 0.8):
        text += ": the dataset says how many classes there are, and the shape of its images"
    elif known is not None and known.key and ("=" in known.remedy) and known.key != f"{key}.{name}":
        text += f"; this is called {known.key} here"
        remedy = known.remedy
    return Problem(f"{key}.{name}", f"{text}\nit takes {listed(takes) or 'none'}", value, remedy)


LEAVE_OUT = "leave it out"


def _type_problem(key: str, value: Any, hint: Any) -> Iterator[Problem]:
    if not fits(value, hint):
        yield Problem(key, f"must be {described(hint)}", value)


SIMPLE = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "null"}


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain value can be an argument with this annotation; what is not understood fits."""
    origin = get_origin(hint)
    if isinstance(value, Mapping):
        return hint not in SIMPLE
    if origin is Literal:
        return value in get_args(hint)
    if origin in (Union, UnionType):
        return _fits_one_of(value, get_args(hint))
    if isinstance(value, list) and origin in (list, Sequence, tuple):
        return _items_fit(value, origin, get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in SIMPLE:
        return isinstance(value, hint)
    return not (origin in (list, tuple, dict) or hint in (list, tuple, dict)) or isinstance(value, list)


def _fits_one_of(value: Any, hints: Sequence[Any]) -> bool:
    """A value of a YAML file is never an object of a class, so classes beside simple types do not count."""
    plain = [hint for hint in hints if hint in SIMPLE or get_origin(hint) is not None]
    others = [hint for hint in hints if hint not in plain and not only_an_object(hint)]
    return bool(others) or not plain or any(fits(value, hint) for hint in plain)


def only_an_object(hint: Any) -> bool:
    """Whether no value of a YAML file can be of this type."""
    return isinstance(hint, type) and hint.__module__.partition(".")[0] == "torch"


def _items_fit(value: list[Any], origin: Any, hints: Sequence[Any]) -> bool:
    if origin is tuple and hints and hints[-1] is not Ellipsis:
        return len(value) == len(hints) and all(fits(item, hint) for item, hint in zip(value, hints, strict=True))
    return not hints or all(fits(item, hints[0]) for item in value)


def described(hint: Any) -> str:
    """An annotation in words."""
    if hint in SIMPLE:
        return SIMPLE[hint]
    origin, hints = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, hints))}"
    if origin in (Union, UnionType):
        return " or ".join(described(member) for member in hints if not only_an_object(member))
    if origin in (list, Sequence) and hints:
        return f"a list, each item {described(hints[0])}"
    if origin is tuple and hints:
        count = "" if hints[-1] is Ellipsis else f" of {len(hints)}"
        return f"a list{count}, each item {described(hints[0])}"
    return getattr(hint, "__name__", str(hint))


def _meant(target: str) -> str:
    """A suggestion for an import path that leads nowhere: the nearest name where it leaves the known ones."""
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        inside = [m.name for m in pkgutil.iter_modules(getattr(module, "__path__", []))]
        public = [name for name in {*vars(module), *inside} if not name.startswith("_")]
        close = nearest(parts[cut], public)
        return f"; did you mean {'.'.join([*parts[:cut], close, *parts[cut + 1 :]])}?" if close else ""
    return "; looked for it in the current folder, in --config-dir and among the installed packages"
