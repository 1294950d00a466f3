"""Validation of plain values by the schema; pydantic's errors translated to terms of the command line."""

from collections.abc import Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ..base.errors import ConfigError, Problem, join_names, nearest, spell_value
from ..config.schema import Config, Target, with_processes_known_before_import
from .known_names import CHOICES, Known, find_choice, find_equivalent, find_value
from .respelling import respell

MISSING = "is missing"
NO_IMPORT_PATH = "must be an import path, such as package.module.Class"

KINDS = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list, such as [a,b]",
    "dict_type": "must hold keys and values",
    "model_type": "must hold keys and values",
    "model_attributes_type": "must hold keys and values",
    "string_pattern_mismatch": NO_IMPORT_PATH,
    "finite_number": "must be a finite number",
}


def validate_values(values: Mapping[str, Any]) -> Config:
    """The config, if every key is known and every value has its type and range.

    Raises:
        ConfigError: with every mistake found.
    """
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(*_problems(error, values)) from None
    # frozen processes may be those of another strategy or topology: `resume` changes these
    return with_processes_known_before_import(config)


def unknown_key(key: str, value: Any = ..., known: Mapping[str, Any] | None = None) -> Problem:
    """The problem of a key that nothing reads. `known`: composed values, with keys beyond the schema's."""
    every = sorted(k for k in {*schema_keys(), *dotted_keys(known or {})} if not f"{k}.".startswith(f"{key}."))
    parent, _, name = key.rpartition(".")
    siblings = [other.rpartition(".")[2] for other in every if other.rpartition(".")[0] == parent]
    meant = _find_meant(name, parent, siblings, every)
    elsewhere = _elsewhere(key, value, [*every, *CHOICES, "hydra.run.dir"])
    near = nearest(name, siblings, 0.85) and meant
    if elsewhere is not None and not (near and (elsewhere.key, elsewhere.remedy) == (near, _assignment(near, value))):
        text = elsewhere.why or (f"is called {elsewhere.key} here" if elsewhere.key else "is not a key of Leyden's")
        return Problem(key, text, value, elsewhere.remedy)
    if meant:
        return Problem(key, f"there is no such key; did you mean {meant}?{_PLUS}", value, _assignment(meant, value))
    same_name = [other for other in every if other.rpartition(".")[2] == name]
    text = f"there is no such key; there is {join_names(same_name)}" if same_name else "there is no such key"
    if siblings and not same_name:
        text += f"; {parent or 'the top level'} has {join_names(siblings)}"
    return Problem(key, text + _PLUS, value)


_PLUS = "\n+key=value adds an argument of a constructor (model, dataset, ...), nothing else"


_NOT_GIVEN = ("processes",)
"""Keys written only by Leyden, never suggested to users."""


@cache
def schema_keys() -> tuple[str, ...]:
    """Every dotted key that the schema names."""
    return tuple(_schema_keys(Config, ""))


def _schema_keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if name in _NOT_GIVEN:
            continue
        yield prefix + name
        nested = _model_in(field.annotation)
        if nested and nested is not Target:
            yield from (key for key in _schema_keys(nested, f"{prefix}{name}.") if "target" not in key)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    choices = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return next((c for c in choices if isinstance(c, type) and issubclass(c, BaseModel)), None)


def dotted_keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from dotted_keys(value, f"{prefix}{name}.")


def _elsewhere(key: str, value: Any, ours: list[str]) -> Known | None:
    """Leyden's equivalent of another tool's key; a key inside a group of Leyden's matches that group only."""
    parent, _, name = key.rpartition(".")
    found = find_equivalent(name, spell_value(value))
    if found is None or (found.key and found.key not in ours):
        return None
    root = parent.partition(".")[0]
    inside = [other.rpartition(".")[2] for other in ours if other.startswith(f"{root}.")]
    foreign = root in ("", "trainer") or not nearest(name, inside)
    return found if foreign or found.key.startswith(f"{root}.") else None


def _find_meant(name: str, parent: str, siblings: list[str], every: list[str]) -> str | None:
    """The sibling key spelled most like it, or the only key of that or nearly that name elsewhere."""
    close = nearest(name, siblings)
    if close:
        return f"{parent}.{close}" if parent else close
    same_name = [other for other in every if parent and other.endswith(f".{parent}.{name}")]
    same_name = same_name or [other for other in every if other.rpartition(".")[2] == name]
    if same_name:
        return same_name[0] if len(same_name) == 1 else None
    by_last = {last: other for other in every if len(last := other.rpartition(".")[2]) > 3}
    close = nearest(name, by_last, cutoff=0.87) if len(name) > 3 else None
    return by_last[close] if close and not close.startswith(f"{name}_") else None


def _assignment(key: str, value: Any) -> str:
    """The override that sets a key; "" if the value is unknown or does not fit on a command line."""
    text = spell_value(value)
    return "" if text is None else f"{key}={text}"


def _problems(error: ValidationError, values: Mapping[str, Any]) -> Iterator[Problem]:
    by_key: dict[str, list[Any]] = {}
    for detail in _of_fitting_members(error.errors(include_url=False), values):
        by_key.setdefault(_key(detail["loc"], values), []).append(detail)
    for key, details in by_key.items():
        yield _problem(key, details, values)


def _of_fitting_members(details: list[Any], values: Mapping[str, Any]) -> list[Any]:
    """Without the complaints of a union's other members where keys and values are given to one that has keys."""
    places = [detail["loc"] for detail in details]
    return [
        detail
        for detail in details
        if not (_is_of_member(detail, values) and any(_is_inside(place, detail["loc"]) for place in places))
    ]


def _is_of_member(detail: Any, values: Mapping[str, Any]) -> bool:
    """Whether a member of a union, whose name ends the place, wants something else than keys and values."""
    *places, member = detail["loc"]
    given: Any = values
    for part in places:
        known = isinstance(given, list) or (isinstance(given, Mapping) and part in given)
        given = given[part] if known else given
    return (
        detail["type"] != "missing" and isinstance(given, Mapping) and given == detail["input"] and member not in given
    )


def _is_inside(place: tuple[Any, ...], of_member: tuple[Any, ...]) -> bool:
    return len(place) > len(of_member) and place[: len(of_member) - 1] == of_member[:-1]


def _key(location: tuple[int | str, ...], values: Mapping[str, Any]) -> str:
    """The dotted key of pydantic's location, without the names of union members."""
    parts: list[str] = []
    node: Any = values
    for index, part in enumerate(location):
        if isinstance(node, Mapping) and isinstance(part, str) and (part in node or index == len(location) - 1):
            node = node.get(part)
        elif isinstance(node, list) and isinstance(part, int):
            node = node[part]
        elif isinstance(node, Mapping) and isinstance(part, str):
            continue
        else:
            break
        parts.append(str(part))
    return ".".join(parts)


def _problem(key: str, details: list[Any], values: Mapping[str, Any]) -> Problem:
    first = details[0]
    if first["type"] == "extra_forbidden":
        return unknown_key(key, first["input"], values)
    if first["type"] == "missing":
        return _missing(key)
    allowed = list(dict.fromkeys(_describe_allowed(detail) for detail in details))
    text = ", or ".join(allowed).replace(", or must be", ", or")
    close, why = find_value(key, str(first["input"]))
    if why:
        text += f"; {why}"
    elif first["type"] == "literal_error":
        close = close or nearest(str(first["input"]), [choice.strip("' ") for choice in _choices(first)]) or ""
        text += f"; did you mean {close}?" if close else ""
    close = close or respell(first["input"])
    remedy = f"{key}={close}" if close else ""
    node = _model_at(key)
    if node is not None and any(detail["type"] == "model_type" for detail in details):
        text += f" of {join_names(list(node.model_fields))}"
        remedy = remedy or _defaults(key, node)
    return Problem(key, text, first["input"], remedy)


def _model_at(key: str) -> type[BaseModel] | None:
    """The schema of the node that a dotted key names, if it has one."""
    node: type[BaseModel] | None = Config
    for name in key.split("."):
        field = node.model_fields.get(name) if node is not None else None
        node = _model_in(field.annotation) if field is not None else None
    return node


def _defaults(key: str, node: type[BaseModel]) -> str:
    """The override that gives a node its defaults; "" where a key has none."""
    fields = node.model_fields
    if any(field.is_required() or field.default_factory is not None for field in fields.values()):
        return ""
    values = {name: spell_value(field.default) for name, field in fields.items()}
    return f"'{key}={{{', '.join(f'{name}: {value}' for name, value in values.items())}}}'"


def _missing(key: str) -> Problem:
    parent, _, name = key.rpartition(".")
    if name == "_target_":
        group = parent.split(".")[0]
        return Problem(parent, f"has no _target_, so there is no class to build: choose one with {group}=NAME")
    return Problem(key, MISSING, remedy=find_choice(key, "null") or f"{key}=...")


def _describe_allowed(detail: Any) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in KINDS:
        return KINDS[kind]
    bounds = {"greater_than_equal": ("ge", "at least"), "greater_than": ("gt", "greater than"),
              "less_than_equal": ("le", "at most"), "less_than": ("lt", "less than")}  # fmt: skip
    if kind in bounds:
        name, words = bounds[kind]
        return f"must be {words} {context[name]}"
    if kind == "literal_error":
        return f"must be one of {', '.join(_choices(detail))}"
    return str(detail["msg"])


def _choices(detail: Any) -> list[str]:
    return detail["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
