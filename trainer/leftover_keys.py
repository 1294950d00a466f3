"""Keys that Leyden's YAML sets for one class where the user has named another that does not take them.

`task._target_=my.Mine` keeps the other keys of task=classification. What Mine takes of them it gets; the rest is
dropped before validation. A key that the user sets stays a mistake.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from omegaconf import DictConfig, flag_override

from .config import Config
from .errors import Problem
from .origin import Origin
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
    """Every argument that the class named with it does not take. Imports the classes."""
    nodes = [(key, node) for key, node in target_nodes(config) if not isinstance(node, Problem)]
    return [
        Leftover(key, name, node.target.rpartition(".")[2])
        for key, node in nodes
        for name in unknown_arguments(key, node)
    ]


def leftovers(found: Sequence[Leftover], origin: Origin) -> list[Leftover]:
    """Those that a file of Leyden's sets for a class which the user has replaced."""
    return [each for each in found if origin.shipped(each.key) and not origin.shipped(f"{each.node}._target_")]


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
    """Delete dotted keys of nested values, in place; those that are not there are passed over."""
    for key in keys:
        *parents, last = key.split(".")
        node = values
        for parent in parents:
            node = node[int(parent)] if parent.isdigit() else node.get(parent)
            if node is None:
                break
        if node is not None and last in node:
            del node[last]
