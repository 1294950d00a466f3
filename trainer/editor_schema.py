"""JSON Schema of the config for editors, which see one YAML file at a time and know no interpolation."""

from typing import Any

from .config import Config
from .errors import nearest, refuse

_LATER = {"type": "string", "pattern": r"\$\{.*\}|^\?\?\?$"}


def editor_schema(group: str | None = None) -> dict[str, Any]:
    """The schema of a whole config (train.yaml, experiments), or of the files of one group.

    Raises:
        ConfigError: there is no such group.
    """
    schema = Config.model_json_schema(by_alias=True)
    definitions = {name: _partial(node) for name, node in schema["$defs"].items()}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": definitions}
    if group is None:
        whole = _partial(schema)
        whole["properties"]["hydra"] = {"type": "object"}
        return {**whole, **head, "title": "leyden"}
    if group not in schema["properties"]:
        close = nearest(group, schema["properties"])
        raise refuse("schema", "there is no such group", group, f"leyden schema {close or 'model'}")
    return {**head, "title": f"leyden {group}", **_with_defaults(schema["properties"][group])}


def _partial(node: dict[str, Any]) -> dict[str, Any]:
    """A file holds some keys only, may have a defaults list, and any value may come from another key."""
    if "properties" not in node:
        return node
    properties = {name: _or_later(child) for name, child in node["properties"].items()}
    kept = {name: value for name, value in node.items() if name != "required"}
    return {**kept, "properties": {**properties, "defaults": {"type": "array"}}}


def _or_later(node: dict[str, Any]) -> dict[str, Any]:
    described = {name: node[name] for name in ("description", "default") if name in node}
    return {**described, "anyOf": [node, _LATER]}


def _with_defaults(node: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [node]} if "$ref" in node else node
