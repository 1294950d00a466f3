"""Keys that Leyden's YAML sets for one class and the class that replaces it does not take.

`task._target_=my.Mine` keeps the other keys of task=classification. Those that Mine takes are passed to it, the rest is
dropped before validation. So are keys of an experiment for the file of a group in whose place the user chooses another
one: experiment=deep_image_hybrid16 strategy=butterfly. A key set by the user remains an error.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from omegaconf import DictConfig, flag_override

from ..base.errors import Problem
from ..config.schema import Config
from .provenance import Origin
from .signatures import target_nodes, unknown_arguments


class Leftover(NamedTuple):
    """A key to drop."""

    node: str
    """Dotted key of the class."""
    name: str
    class_name: str

    @property
    def key(self) -> str:
        return f"{self.node}.{self.name}"


def not_taken(config: Config) -> list[Leftover]:
    """Arguments that the class of their node does not take. Imports the classes."""
    nodes = [(key, node) for key, node in target_nodes(config) if not isinstance(node, Problem)]
    return [
        Leftover(key, name, node.target.rpartition(".")[2])
        for key, node in nodes
        for name in unknown_arguments(key, node)
    ]


def leftovers(found: Sequence[Leftover], origin: Origin) -> list[Leftover]:
    """Leftovers among these: set by a file of Leyden's for a class that the user has replaced, by another class or by
    choosing another file of the group, as of an experiment's strategy."""
    return [
        each
        for each in found
        if origin.is_shipped(each.key)
        and (origin.is_chosen(each.node) or not origin.is_shipped(f"{each.node}._target_"))
    ]


def notices(dropped: Sequence[Leftover]) -> Iterator[str]:
    """One line for each class."""
    for node in dict.fromkeys(each.node for each in dropped):
        names = [each.name for each in dropped if each.node == node]
        class_name = next(each.class_name for each in dropped if each.node == node)
        yield f"{node}: {class_name} does not take {', '.join(names)}, set by Leyden's own YAML: left out"


def drop_from_composition(composed: DictConfig, keys: Sequence[str]) -> None:
    """Delete keys of a composition, in place."""
    with flag_override(composed, ["struct", "readonly"], False):
        drop(composed, keys)


def drop(values: Any, keys: Sequence[str]) -> None:
    """Delete dotted keys of nested values, in place; missing ones are ignored."""
    for key in keys:
        *parents, last = key.split(".")
        node = values
        for parent in parents:
            node = node[int(parent)] if parent.isdigit() else node.get(parent)
            if node is None:
                break
        if node is not None and last in node:
            del node[last]
