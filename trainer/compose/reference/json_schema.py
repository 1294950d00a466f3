"""JSON Schema of the config for editors, which read one YAML file at a time and resolve no interpolation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...base.errors import join_names, nearest, refuse
from ...config.schema import Config, Target
from .yaml_library import Library, ReferenceEntry

_LATER = {"type": "string", "pattern": r"\$\{.*\}|^\?\?\?$"}
_NESTED = {"type": "object", "required": ["_target_"]}
_EXPERIMENTS = "experiment"
"""The group whose files are partial configs."""


def editor_schema(group: str | None = None) -> dict[str, Any]:
    """The schema of a whole config (train.yaml, experiments), or of the files of one group.

    The latter knows the arguments of the classes that Leyden's files name, from their signatures; a user-provided
    class may have any.

    Raises:
        ConfigError: there is no such group.
    """
    schema = Config.model_json_schema(by_alias=True)
    definitions = {name: _partial(node) for name, node in schema["$defs"].items()}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": definitions}
    if group in (None, _EXPERIMENTS):
        whole = _partial(schema)
        whole["properties"]["hydra"] = {"type": "object"}
        return {**whole, **head, "title": "leyden"}
    library, nodes = Library(), schema["properties"]
    if group not in nodes:
        groups = [name for name in library.groups if name in nodes or name == _EXPERIMENTS]
        close = nearest(group, groups)
        text = f"there is no such group; the groups are {join_names(groups)}"
        raise refuse("schema", text, group, f"leyden schema {close or 'model'}")
    node = nodes[group]
    name = _definition(node)
    if name is not None and "_target_" in definitions[name]["properties"]:
        definitions[name] = _with_arguments(definitions[name], list(_classes(library, group)))
    # a file for the package _global_ holds the node under the name of its group
    own = {"defaults": {"type": "array"}, group: node}
    return {**head, "title": f"leyden {group}", "allOf": [_file_of(node)], "properties": own}


def _file_of(node: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a whole file with this node; its defaults list is not a named class."""
    return {**node, "properties": {"defaults": {}}} if "additionalProperties" in node else dict(node)


def _definition(node: Mapping[str, Any]) -> str | None:
    """The definition that a node refers to: directly, as one of several, or for each of its values."""
    if "$ref" in node:
        return str(node["$ref"]).rpartition("/")[2]
    inner = [*node.get("anyOf", []), node.get("additionalProperties", {})]
    return next((name for each in inner if isinstance(each, dict) and (name := _definition(each))), None)


def _partial(node: dict[str, Any]) -> dict[str, Any]:
    """The schema of a partial file: every key optional, a defaults list allowed, any value an interpolation."""
    if "properties" not in node:
        return node
    properties = {name: _or_later(child) for name, child in node["properties"].items()}
    kept = {name: value for name, value in node.items() if name != "required"}
    return {**kept, "properties": {**properties, "defaults": {"type": "array"}}}


def _or_later(node: dict[str, Any]) -> dict[str, Any]:
    described = {name: node[name] for name in ("description", "default") if name in node}
    return {**described, "anyOf": [node, _LATER]}


@dataclass(frozen=True)
class _Class:
    """A class named by files of a group.

    Args:
        target: its import path.
        choices: these files, for others that are based on them.
        comments: their comments on its arguments.
    """

    target: str
    choices: list[str]
    comments: dict[str, str]


def _classes(library: Library, group: str) -> Iterator[_Class]:
    found: dict[str, _Class] = {}
    for choice in library.groups.get(group, []):
        entries = library.entries(group, choice)
        for name, key in library.keys(group, choice).items():
            node, _, last = name.rpartition(".")
            # nested classes, which are arguments, are left out
            if last == "_target_" and node.count(".") <= (group in ("callbacks", "logger")):
                one = found.setdefault(str(key.value), _Class(str(key.value), [], {}))
                if node == group:
                    one.choices.append(choice)
                one.comments.update(_comments(entries, node, one.comments))
    yield from found.values()


def _comments(entries: list[ReferenceEntry], node: str, known: Mapping[str, str]) -> dict[str, str]:
    inside = {entry.name.removeprefix(f"{node}."): entry.comment for entry in entries if f"{node}." in entry.name}
    return {name: comment for name, comment in inside.items() if comment and name not in known}


def _with_arguments(node: dict[str, Any], classes: list[_Class]) -> dict[str, Any]:
    """The schema of a class's node, with the arguments that each class takes."""
    targets = {"enum": [each.target for each in classes]}
    shared = {**node["properties"], "_target_": {"anyOf": [targets, *node["properties"]["_target_"]["anyOf"]]}}
    rules = [rule for each in classes if (rule := _rule(each, shared))]
    return {**node, "properties": shared, "allOf": rules}


def _rule(named: _Class, shared: Mapping[str, Any]) -> dict[str, Any] | None:
    """The rule "a node of this class has these arguments"; None if the class is not installed."""
    from ...config.targets import find
    from .argument_schema import arguments_schema

    constructor = find("", Target.model_validate({"_target_": named.target}))
    if not callable(constructor):
        return None
    arguments, takes_more = arguments_schema(constructor)
    described = {name: _describe_argument(child, named.comments.get(name, "")) for name, child in arguments.items()}
    allowed = {"properties": {**described, **shared}, **({} if takes_more else {"additionalProperties": False})}
    of_class = {"properties": {"_target_": {"const": named.target}}, "required": ["_target_"]}
    based = {
        "not": {"required": ["_target_"]},
        "properties": {"defaults": {"contains": {"enum": named.choices}}},
        "required": ["defaults"],
    }
    return {"if": {"anyOf": [of_class, *([based] if named.choices else [])]}, "then": allowed}


def _describe_argument(node: dict[str, Any], comment: str) -> dict[str, Any]:
    """The schema of an argument; one that is not a plain value may be a nested class."""
    if not node:
        return {}
    nested = [] if isinstance(node.get("type"), str) and node["type"] != "array" else [_NESTED]
    described = {"description": comment} if comment else {}
    return {**described, "anyOf": [node, _LATER, *nested]}
