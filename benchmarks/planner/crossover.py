"""Deep Image's crossover by the simulation: from how many GPUs on data parallelism is faster than a divided head.

    python benchmarks/planner/crossover.py

Minwa (conf/topology/minwa.yaml), 16 layers of 212.8 M parameters and 118.3 GFLOP an image, of which the head has all
but 20 M and a 25th of the time; 25,088 features an image. Data parallelism: near-first butterfly and lazy updates.
"""

from collections.abc import Sequence
from pathlib import Path

import yaml

from leyden.trainer.core.transfers import Phase, Placement, Transfer
from leyden.trainer.hardware.schema import Topology
from leyden.trainer.planner.cluster.links import links_of
from leyden.trainer.planner.cluster.priors import priors
from leyden.trainer.planner.cluster.simulation import forecast
from leyden.trainer.planner.quantities import ComputeTimes

MINWA = Path(__file__).parents[2] / "conf" / "topology" / "minwa.yaml"
PARAMETERS, REST, FEATURES, GFLOP = 212_760_000, 20_000_000, 25_088, 118.3
HEAD_TIME = 0.04
GPUS = (2, 4, 8, 16, 32, 64)


def times(images: int, updated: float) -> ComputeTimes:
    """Of a K40, at the efficiency of the priors."""
    total = GFLOP * images / (4290 * priors().compute_efficiency.value["fp32"])
    ready = ((PARAMETERS - REST, total * 2 / 3 * HEAD_TIME), (PARAMETERS, total * 2 / 3))
    return ComputeTimes(total / 3, total * 2 / 3, 20 * updated / (288e9 * priors().memory_efficiency.value), ready)


def averaged(placement: Placement) -> list[Transfer]:
    """Gradients of the head, then of the rest, halved in the node first and in fp32."""
    each, nodes = placement.workers_per_node, placement.nodes
    inside, outside = 8 * (1 - 1 / each), 8 * (1 - 1 / nodes) / each
    messages = 2 * (placement.workers.bit_length() - 1)
    return [
        Transfer(
            "gradients", "backward", size * (inside + outside), size * outside, messages,
            overlaps=("backward", "next forward"), pattern="butterfly", needed_by="next forward", after_gradients=ready,
        )
        for size, ready in ((PARAMETERS - REST, PARAMETERS - REST), (REST, PARAMETERS))
    ]  # fmt: skip


def divided(placement: Placement, images: int) -> list[Transfer]:
    """Features of every image to all GPUs, their gradients back, and the gradients of the rest in a ring."""
    workers, each = placement.workers, placement.workers_per_node
    sent = 4 * images * FEATURES
    phases: Sequence[Phase] = ("forward", "backward")
    pairs = [
        Transfer(
            "features", phase, (workers - 1) * sent, (workers - each) * sent, workers - 1, pattern="pairs",
            needed_by=phase,
        )
        for phase in phases
    ]  # fmt: skip
    rest = placement.all_reduce(
        "gradients", "backward", 4 * REST, overlaps=("backward",), after_gradients=PARAMETERS
    )  # fmt: skip
    return [*pairs, rest]


def main() -> None:
    minwa = Topology.model_validate(yaml.safe_load(MINWA.read_text()))
    for images in (16, 32, 64):
        for gpus in GPUS:
            each = min(gpus, minwa.devices_per_node)
            links = links_of(minwa.model_copy(update={"nodes": gpus // each, "devices_per_node": each}), priors())
            placement = Placement(gpus, each)
            data = forecast(times(images, PARAMETERS), averaged(placement), placement, links, priors()).mean
            head = REST + (PARAMETERS - REST) / gpus
            split = forecast(times(images, head), divided(placement, images), placement, links, priors()).mean
            faster = "divided head" if split < data else "data parallelism"
            print(f"{images} images a GPU, {gpus:2} GPUs: {data * 1e3:5.0f} and {split * 1e3:5.0f} ms: {faster}")


if __name__ == "__main__":
    main()
