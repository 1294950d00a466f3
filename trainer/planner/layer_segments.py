"""Operations of a step by layer: in the forward by the module that computes, in the backward by the graph's nodes."""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from .operation_cost import NOTHING
from .quantities import Cost, LayerWork
from .torch_compat import node_in_backward, sequence_number


@dataclass
class _Segment:
    """What a module computes between two boundaries: begins and ends of modules' forwards."""

    name: str
    forward: Cost = NOTHING
    backward: Cost = NOTHING
    gradient_elements: int = 0

    def is_empty(self) -> bool:
        return not (self.forward.kernels or self.backward.kernels or self.gradient_elements)


class LayerSegments:
    """The segments of forwards in their order, and what each costs.

    Autograd numbers the nodes of its graph in the order of the forward. The numbers at the boundaries of a segment tell
    the nodes that its operations made, and in the backward the node that computes tells the segment.
    """

    def __init__(self) -> None:
        self._parts: list[list[_Segment]] = []
        """Segments of each part of a step (accumulated gradients)."""
        self._first_nodes: list[int] = []
        self._by_node: list[_Segment] = []
        """The segment of the nodes from each of `_first_nodes` on."""
        self._inside: list[str] = []
        self._last = _Segment("")
        self._outside = ""

    def begin_part(self, name: str) -> None:
        """Begin another part of the step, with what is computed before its forward."""
        self._parts.append([])
        self._open(name)

    def begin_forward(self, name: str) -> None:
        """Begin the forward; the name is for what the followed module does not compute."""
        self._outside = name
        self._open(name)

    def add(self, cost: Cost) -> None:
        """Count an operation."""
        node = node_in_backward()
        if node is None:
            self._last.forward = self._last.forward + cost
        else:
            segment = self._segment_of(node)
            segment.backward = segment.backward + cost

    def gradient_ready(self, elements: int) -> None:
        """Count elements whose gradients now exist."""
        self._last.gradient_elements += elements

    @contextmanager
    def following(self, module: nn.Module, name: str) -> Iterator[None]:
        """Follow the forwards of a module and of those in it.

        Args:
            name: of the module itself; the others' are relative to it.
        """
        named = [(own or name, part) for own, part in module.named_modules()]
        handles: list[Any] = []
        for own, part in named:
            handles.append(part.register_forward_pre_hook(self._begins(own)))
            handles.append(part.register_forward_hook(self._end_segment, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def layers(self) -> tuple[LayerWork, ...]:
        """Layers in the order of the forward; the work of a step's parts is added up.

        A module that is called several times, or that computes between its children's forwards, is as many layers.
        """
        whole, *more = ([segment for segment in part if not segment.is_empty()] for part in self._parts)
        for part in more:
            if [segment.name for segment in part] != [segment.name for segment in whole]:
                whole += part  # a forward that depends on its batch: the parts stay apart
                continue
            for segment, other in zip(whole, part, strict=True):
                segment.forward += other.forward
                segment.backward += other.backward
                segment.gradient_elements += other.gradient_elements
        return tuple(LayerWork(s.name, s.forward, s.backward, s.gradient_elements) for s in whole)

    def _begins(self, name: str) -> Any:
        def begin(module: nn.Module, inputs: Any) -> None:
            self._inside.append(name)
            self._open(name)

        return begin

    def _end_segment(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._inside.pop()
        self._open(self._inside[-1] if self._inside else self._outside)

    def _open(self, name: str) -> None:
        if node_in_backward() is not None:
            return  # computed again, by activation checkpointing: a cost of the node that needs it
        self._last = _Segment(name)
        self._parts[-1].append(self._last)
        self._first_nodes.append(sequence_number())
        self._by_node.append(self._last)

    def _segment_of(self, node: int) -> _Segment:
        """That of a node; those without a number of their own accumulate gradients, after the node that made them."""
        if node <= 2**63:
            self._last = self._by_node[bisect_right(self._first_nodes, node) - 1]
        return self._last
