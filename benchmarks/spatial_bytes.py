"""What strategy=spatial sends a step, at the sizes that were published: pure arithmetic, in seconds, on any machine.

    python benchmarks/spatial_bytes.py                                    # 3 x 200 x 200, 8 maps, batch 96
    python benchmarks/spatial_bytes.py --maps 26 --grids 8x8              # the network of 11 billion parameters

Megabytes sent by a worker, the mean over all. `halo`: inputs of the stage's filters, fetched and their gradients given
back, as Coates et al. 2013 would train the stage alone. `step`: everything that greedy training of the stage sends with
task=reconstruction (stages below it forward, decoder, pooling, sums). `all-reduce`: what data parallelism would send
for the stage's gradients.
"""

import argparse

import torch

from leyden.models.cots_autoencoder import COTSAutoencoder, Stage
from leyden.trainer.core.transfers import Placement
from leyden.trainer.strategies.spatial.grid import Grid, transfer

FLOAT32 = 4


def sent(grid: Grid, layer: object, batch: int) -> float:
    """Bytes of a layer's halo, one way."""
    channels = layer.input_shape[0]  # pyright: ignore[reportAttributeAccessIssue]
    pairs = grid.halos(layer)  # pyright: ignore[reportArgumentType]
    placement = Placement(grid.workers, grid.workers)
    return transfer("", "forward", pairs, channels * batch * FLOAT32, placement).bytes


def stage_step(grid: Grid, stages: list[Stage], number: int, batch: int) -> float:
    """Bytes of one step of greedy training of a stage."""
    total = 0.0
    for below in stages[:number]:
        layers = [below.filters, below.pool, below.norm]
        total += sum(sent(grid, layer, batch) for layer in (layers if below is not stages[0] else layers[1:]))
    stage = stages[number]
    if number > 0:  # the images are everywhere, and features of frozen stages want no gradient
        total += sent(grid, stage.filters, batch)
    total += 2 * sent(grid, stage.filters, batch) + 2 * sent(grid, stage.pool, batch)
    sums_and_scale = 3 * batch * FLOAT32 + FLOAT32
    return total + 2 * (grid.workers - 1) / grid.workers * sums_and_scale


def main() -> None:
    parser = argparse.ArgumentParser(description="Bytes that strategy=spatial sends a step")
    parser.add_argument("--image", type=int, default=200)
    parser.add_argument("--maps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--grids", nargs="+", default=["2x2", "3x4", "8x8"])
    asked = parser.parse_args()
    with torch.device("meta"):
        model = COTSAutoencoder((3, asked.image, asked.image), maps=asked.maps)
    stages = [stage for stage in model.stages if isinstance(stage, Stage)]
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, batch {asked.batch}, float32")
    print("stage  params_M   grid   halo_MB  step_MB  all-reduce_MB  all-reduce/halo  all-reduce/step")
    for number, stage in enumerate(stages):
        parameters = sum(p.numel() for p in stage.parameters())
        for name in asked.grids:
            grid = Grid(*map(int, name.split("x")))
            halo = 2 * sent(grid, stage.filters, asked.batch) / 1e6
            step = stage_step(grid, stages, number, asked.batch) / 1e6
            reduced = 2 * (grid.workers - 1) / grid.workers * parameters * FLOAT32 / 1e6
            print(f"{number + 1:5} {parameters / 1e6:9.1f} {name:>6} {halo:9.2f} {step:8.2f} {reduced:14.0f} "
                  f"{reduced / halo:16.0f} {reduced / step:16.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
