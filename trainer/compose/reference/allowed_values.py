"""Allowed values of a key by the schema, in words. Arguments of classes are not covered."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from ...config.schema import Config

_TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true | false", "null": "null"}
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "over", "maximum": "at most", "exclusiveMaximum": "under"}


def allowed_values(key: str) -> str:
    """Allowed values of a dotted key, choices separated by |; "" if the schema does not have it."""
    node: Mapping[str, Any] = _schema()
    for part in key.split("."):
        node = _resolve_reference(node).get("properties", {}).get(part, {})
    return _in_words(node)


@cache
def _schema() -> dict[str, Any]:
    return Config.model_json_schema(by_alias=True)


def _resolve_reference(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """The node behind a $ref, also one inside anyOf; any other node itself."""
    named = [member["$ref"].rpartition("/")[2] for member in (node, *node.get("anyOf", [])) if "$ref" in member]
    return _schema()["$defs"][named[0]] if named else node


def _in_words(node: Mapping[str, Any]) -> str:
    if "anyOf" in node:
        members = list(dict.fromkeys(filter(None, map(_in_words, node["anyOf"]))))
        return (" | " if any("enum" in member for member in node["anyOf"]) else " or ").join(members)
    if "enum" in node:
        return " | ".join(map(str, node["enum"]))
    if node.get("type") == "array":
        items = _in_words(node.get("items", {}))
        return f"list, each item {items}" if items else "list"
    bounds = [f"{words} {node[bound]}" for bound, words in _BOUNDS.items() if bound in node]
    return " ".join([_TYPES.get(node.get("type", ""), ""), " and ".join(bounds)]).strip()
