"""Arguments of every `_target_` checked against the constructor's signature, without building anything."""

import inspect
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError

from ..base.errors import Problem, join_names, nearest, spell_value
from ..config.allowed_targets import REMEDY, refused_name
from ..config.option_classes import hints_of, option_class, options_of
from ..config.schema import Config, Target
from ..config.targets import SUPPLIED, find, is_group_node, signature_of, takes_any
from .known_names import DATASET_DECLARES, find_equivalent, find_value
from .respelling import respell
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
        yield from _nested_targets(f"{key}.{name}", value)


def _nested_targets(key: str, value: Any) -> Iterator[tuple[str, Target | Problem]]:
    if isinstance(value, Mapping) and "_target_" in value:
        try:
            yield from _with_nested(key, Target.model_validate(value))
        except ValidationError:
            yield key, Problem(f"{key}._target_", NO_IMPORT_PATH, value["_target_"])
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _nested_targets(f"{key}.{name}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nested_targets(f"{key}.{index}", item)


def refused_names(config: Config) -> Iterator[Problem]:
    """Targets that no config may name, as far as their names decide it: nothing is imported."""
    for key, node in target_nodes(config):
        reason = None if isinstance(node, Problem) else refused_name(node.target, not is_group_node(key))
        if reason is not None and not isinstance(node, Problem):
            yield Problem(f"{key}._target_", reason, node.target, REMEDY)


def signature_problems(config: Config, given: Collection[str] | None = None) -> Iterator[Problem]:
    """Arguments that the constructors of the named classes do not take. `given`: of classes with one of these keys."""
    for key, node in target_nodes(config):
        if given is not None and not any(name.startswith(f"{key}.") for name in given):
            continue
        if isinstance(node, Problem):
            yield node
        else:
            yield from node_problems(key, node)


def node_problems(key: str, node: Target) -> Iterator[Problem]:
    """Problems of one class and its arguments."""
    found = find(key, node)
    if isinstance(found, Problem):
        yield found
        return
    if node.partial and is_group_node(key) and not _supplied_arguments(key):
        text = "would be a function that nothing calls: the run supplies no arguments of this group"
        yield Problem(f"{key}._partial_", text, True, LEAVE_OUT)
    parameters = signature_of(found)
    if parameters is None:
        return
    hints = hints_of(found)
    supplied = _supplied_arguments(key)
    for name, value in node.arguments.items():
        if name in parameters:
            yield from _argument_problems(f"{key}.{name}", value, hints.get(name, Any))
        elif not takes_any(parameters):
            taken = [parameter for parameter in _parameter_names(parameters) if parameter not in supplied]
            options = [f"{p}.{option}" for p in taken if (o := option_class(hints.get(p))) for option in options_of(o)]
            yield _unknown_argument(key, name, value, found, node, taken, options)
    supplied_later = node.partial and not supplied
    for name in [] if supplied_later else set(_required_names(parameters)) - {*node.arguments, *supplied}:
        yield Problem(f"{key}.{name}", f"{_name(found)} cannot be built without it", remedy=f"+{key}.{name}=...")


def unknown_arguments(key: str, node: Target) -> list[str]:
    """Arguments of a node that its class does not take; none if there is no such class, or it takes any."""
    found = find(key, node)
    parameters = None if isinstance(found, Problem) else signature_of(found)
    if parameters is None or takes_any(parameters):
        return []
    return [name for name in node.arguments if name not in parameters]


def _supplied_arguments(key: str) -> tuple[str, ...]:
    return SUPPLIED.get(key.partition(".")[0], ()) if is_group_node(key) else ()


def _parameter_names(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


def _required_names(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name in _parameter_names(parameters) if parameters[name].default is inspect.Parameter.empty]


def _name(constructor: Any) -> str:
    return getattr(constructor, "__name__", str(constructor))


def _unknown_argument(
    key: str, name: str, value: Any, found: Any, node: Target, takes: Sequence[str], options: Sequence[str]
) -> Problem:
    declared = [field for field in type(node).model_fields if field not in ("target", "partial")]
    as_option = next((option for option in options if option.endswith(f".{name}")), None)
    close = as_option or nearest(name, [*takes, *declared])
    known = find_equivalent(name, spell_value(value))
    if known is not None and known.key.startswith(f"{key}.") and not nearest(name, takes, 0.85):
        close = None
    text = f"{_name(found)} takes no argument {name!r}"
    remedy = f"{key}.{close}={spell_value(value)}" if close else LEAVE_OUT
    if close:
        text += f"; did you mean {close}?"
    elif key == "model" and nearest(name, [*DATASET_DECLARES, *SUPPLIED["model"]], 0.8):
        text += ": the dataset declares the number of classes, and the shape of its images"
    elif known is not None and known.key and ("=" in known.remedy) and known.key != f"{key}.{name}":
        text += f"; this is called {known.key} here"
        remedy = known.remedy
    return Problem(f"{key}.{name}", f"{text}\nit takes {join_names(takes) or 'none'}", value, remedy)


LEAVE_OUT = "leave it out"


def _argument_problems(key: str, value: Any, hint: Any) -> Iterator[Problem]:
    options = option_class(hint)
    if options is None:
        yield from _type_problem(key, value, hint)
        return
    if not isinstance(value, Mapping):
        if value is not None or NoneType not in get_args(hint):
            yield Problem(key, f"must hold keys: {join_names(list(options_of(options)))}", value, f"{key}.KEY=VALUE")
        return
    hints = options_of(options)
    for name, item in value.items():
        if name in hints:
            yield from _type_problem(f"{key}.{name}", item, hints[name])
        else:
            yield _unknown_option(f"{key}.{name}", item, list(hints))


def _unknown_option(key: str, value: Any, takes: Sequence[str]) -> Problem:
    node, _, name = key.rpartition(".")
    close = nearest(name, takes)
    meant = f"; did you mean {close}?" if close else ""
    remedy = f"{node}.{close}={spell_value(value)}" if close else LEAVE_OUT
    return Problem(key, f"there is no such key in {node}{meant}\nit takes {join_names(takes)}", value, remedy)


def _type_problem(key: str, value: Any, hint: Any) -> Iterator[Problem]:
    if not fits(value, hint):
        close = find_value(key, str(value))[0] or nearest(str(value), _literals(hint))
        if not close and (meant := respell(value)) and fits(json.loads(meant), hint):
            close = meant
        yield Problem(key, f"must be {describe_annotation(hint)}", value, f"{key}={close}" if close else "")


def _literals(hint: Any) -> list[str]:
    """The texts that an annotation allows."""
    return [each for each in get_args(hint) if isinstance(each, str)] if get_origin(hint) is Literal else []


_LISTS = (list, tuple, Sequence)
SIMPLE = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "null"}


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain value can be an argument with this annotation; True for annotations that are not understood."""
    origin = get_origin(hint)
    if isinstance(value, Mapping):
        return _mapping_fits(value, hint)
    if origin is Literal:
        return value in get_args(hint)
    if origin in (Union, UnionType):
        return _fits_one_of(value, get_args(hint))
    if isinstance(value, list) and origin in _LISTS:
        return _items_fit(value, origin, get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in SIMPLE:
        return isinstance(value, hint)
    return not (origin in (*_LISTS, dict) or hint in (list, tuple, dict)) or isinstance(value, list)


def _mapping_fits(value: Mapping[str, Any], hint: Any) -> bool:
    """`fits` for an object with a `_target_`, or for keys and values."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_mapping_fits(value, member) for member in get_args(hint))
    if "_target_" in value:
        return hint not in SIMPLE
    return not (hint in (*SIMPLE, list, tuple) or origin in (*_LISTS, Literal) or only_an_object(hint))


def _fits_one_of(value: Any, hints: Sequence[Any]) -> bool:
    """`fits` for a union. A YAML value is never an object, so classes next to simple types are ignored."""
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


def describe_annotation(hint: Any) -> str:
    """An annotation in words."""
    if hint in SIMPLE:
        return SIMPLE[hint]
    origin, hints = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, hints))}"
    if origin in (Union, UnionType):
        return " or ".join(describe_annotation(member) for member in hints if not only_an_object(member))
    if origin in (list, Sequence) and hints:
        return f"a list, each item {describe_annotation(hints[0])}"
    if origin is tuple and hints:
        count = "" if hints[-1] is Ellipsis else f" of {len(hints)}"
        return f"a list{count}, each item {describe_annotation(hints[0])}"
    return getattr(hint, "__name__", str(hint))
