"""Networks of published rows, of which only size and arithmetic are printed: stand-ins for a count of their layers.

A planned run counts its own layers. Here a network is one of five families, by its name: which of its parameters have
their gradients early, and how many bytes it moves for its arithmetic.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from exam_rows import Row

from leyden.trainer.planner.quantities import Cost, LayerWork, StepWork

PIECES = 12
"""Layers of a stand-in."""


@dataclass(frozen=True)
class Family:
    head: float = 0.0
    """Share of the parameters in the last layers, whose gradients come first; they take little time."""
    growth: float = 3.0
    """Parameters of the rest: those of the last x of the layers' time are 1 - (1 - x) ** growth of them."""
    tail: float = 0.0
    """Share of the parameters in the first layer, whose gradients come last."""
    largest: float = 0.1
    """Share of the largest tensor."""
    elements_per_flop: float = 0.0107
    """Elements of activations that training reads and writes."""
    kind: Literal["plain", "residual", "grouped", "transformer"] = "residual"
    kernels: int = 25
    """Operations of a step, for each of the network's layers."""


FAMILIES = (
    ("vgg|alexnet|caffenet|overfeat|easgd", Family(0.89, 2.0, 0.0, 0.7, 0.0023, "plain")),
    ("face", Family(0.4, 3.0, 0.0, 0.4)),
    ("bert|llama|clip|vit|gpt|deit|swin|mixer", Family(0.0, 1.0, 0.15, 0.15, 0.0047, "transformer")),
    ("resnext|densenet|efficientnet|mobilenet|regnet|convnext", Family(elements_per_flop=0.0142, kind="grouped")),
)


def family(model: str) -> Family:
    """The first whose pattern the model's name has."""
    return next((found for pattern, found in FAMILIES if re.search(pattern, model)), Family())


def element_bytes(precision: str) -> float:
    """Of an activation."""
    return 4.0 if precision in ("fp32", "tf32") else 2.0


def gradient_bytes(row: Row) -> float:
    """Of a gradient as it is sent: mixed precision keeps parameters in fp32, and what converts the network does not."""
    return 2.0 if row.precision.startswith(("fp16", "bf16")) else 4.0


def work(model: str, parameters: float, gflop: float, precision: str, batch: float) -> StepWork:
    """The stand-in's work of a step."""
    of = family(model)
    flop = gflop * 1e9 * batch / 3
    moved = flop * of.elements_per_flop * element_bytes(precision)
    launches = of.kernels * depth(model) // (3 * PIECES)
    layers: list[LayerWork] = []
    for index, (share, time) in enumerate(reversed(list(shares(of)))):
        forward, backward = Cost(flop * time, 0.0, launches), Cost(2 * flop * time, 0.0, 2 * launches)
        layers.append(LayerWork(f"products {index}", forward, backward, round(share * parameters)))
        layers.append(LayerWork(f"elementwise {index}", Cost(0.0, moved * time), Cost(0.0, 2 * moved * time)))
    return StepWork(round(batch), tuple(layers), Cost(0.0, 5 * 4.0 * parameters))


def depth(model: str) -> int:
    """Layers of a network, by the number in its name."""
    found = re.search(r"[a-z](\d{2,3})(?!\d)", model)
    return int(found.group(1)) if found and int(found.group(1)) < 300 else 50


def shares(of: Family) -> Iterator[tuple[float, float]]:
    """(Share of the parameters, share of backward) in the order of gradients."""
    head_time = 0.05 if of.head else 0.0
    if of.head:
        yield of.head, head_time
    rest, each = 1.0 - of.head - of.tail, (1.0 - head_time) / PIECES
    for index in range(PIECES):
        begin, end = index / PIECES, (index + 1) / PIECES
        own = rest * ((1 - begin) ** of.growth - (1 - end) ** of.growth)
        yield own + (of.tail if index == PIECES - 1 else 0.0), each
