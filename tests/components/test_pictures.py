"""Pictures in TensorBoard: training images, confusion matrices, how strategies divide and exchange."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pool import Pool
from runs import TINY, Freeze
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from leyden.models.local_filters import LocalFilters
from leyden.trainer.components.callbacks import confusion_matrix
from leyden.trainer.components.callbacks.confusion_matrix import picture
from leyden.trainer.components.callbacks.train_images import grid
from leyden.trainer.core.state import RunState
from leyden.trainer.entrypoints.start import start
from leyden.trainer.strategies.butterfly.picture import Message, exchange_picture
from leyden.trainer.strategies.spatial.grid import Grid
from leyden.trainer.strategies.spatial.picture import tiling_picture

QUICK = [*TINY, "augment=none", "trainer.max_epochs=1", "trainer.enable_progress_bar=false"]


def pictures(run_dir: Path) -> dict[str, list[np.ndarray]]:
    events = EventAccumulator(str(run_dir))
    events.Reload()
    return {
        tag: [np.asarray(Image.open(io.BytesIO(event.encoded_image_string))) for event in events.Images(tag)]
        for tag in events.Tags()["images"]
    }


def test_first_training_images(freeze: Freeze) -> None:
    """Also from batches that are smaller than the picture, and once, though the run is resumed."""
    run_dir = freeze("run", *QUICK, "batch_size=6", "trainer.max_steps=9")
    assert start(run_dir) == 0
    assert start(run_dir, "resume") == 0
    (shown,) = pictures(run_dir)["images/train"]
    tiles = [
        shown[row : row + 112, column : column + 112] for row in range(0, 456, 114) for column in range(0, 456, 114)
    ]
    first = next(iter(_training_batches(run_dir)))
    assert len(tiles) == 16
    for tile, image in zip(tiles, first, strict=False):
        assert np.array_equal(tile[7::14, 7::14, 0], image), "not the pixels that the network sees"


@pytest.mark.parametrize("steps", [1, 3])
def test_the_first_step_does_not_wait_for_the_logger_of_its_images(
    freeze: Freeze, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorBoard is slow to import. A run of one step has its image nevertheless."""
    run_dir = freeze("run", *QUICK, "batch_size=16", f"trainer.max_steps={steps}")
    logged: list[int] = []
    report = RunState.report_image

    def noted(state: RunState, name: str, image: Image.Image) -> None:
        if name == "images/train":
            logged.append(state.step)
        report(state, name, image)

    monkeypatch.setattr(RunState, "report_image", noted)
    assert start(run_dir) == 0
    assert logged == [1]
    assert len(pictures(run_dir)["images/train"]) == 1


def test_a_failed_run_has_the_images_that_it_failed_with(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = freeze("run", *QUICK, "batch_size=16", "model.hidden=[8]")

    def failing(*arguments: object, **named: object) -> None:
        raise RuntimeError("the first step")

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", failing)
    assert start(run_dir) == 1
    assert len(pictures(run_dir)["images/train"]) == 1


def _training_batches(run_dir: Path) -> list[np.ndarray]:
    """Of the run's first batch, uint8 (samples, height, width), read as a training would read it."""
    from leyden.trainer.config.schema import load
    from leyden.trainer.data.datamodule import ImageData

    data = ImageData(load(run_dir), (0, 1))
    part = next(iter(data.train_parts(0)))
    return [part.batch[0].numpy()[:, 0]]


@pytest.mark.slow
def test_confusion_matrix_counts_every_sample_once(
    freeze: Freeze, pools: Callable[[int], Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker and two, whose shares are uneven, see the same matrix; its diagonal is the accuracy."""
    one, two = freeze("one", *QUICK), freeze("two", *QUICK, "topology.devices_per_node=2", "strategy=ddp")
    counted: dict[int, torch.Tensor] = {}

    def kept(counts: torch.Tensor, names: object = None) -> Image.Image:
        counted[len(counted)] = counts
        return picture(counts)

    monkeypatch.setattr(confusion_matrix, "picture", kept)
    assert start(one) == 0
    pools(2).run(two)
    test, val = counted[0], counted[1]
    assert int(test.sum()) == 360
    assert int(val.sum()) == 287
    alone, shared = pictures(one), pictures(two)
    assert alone.keys() == shared.keys() == {"images/train", "confusion/test", "confusion/val"}
    for split in ("test", "val"):
        assert np.array_equal(alone[f"confusion/{split}"][-1], shared[f"confusion/{split}"][-1])


def test_grid_of_one_and_three_channels() -> None:
    grey, colour = torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.zeros(2, 3, 200, 100, dtype=torch.uint8)
    assert grid(grey).size == (3 * 114, 2 * 114)
    assert grid(colour).size == (2 * 102, 202)


@pytest.mark.parametrize(("classes", "cell"), [(2, 240), (10, 48), (41, 19), (1000, 1)])
def test_matrix_of_any_size(classes: int, cell: int) -> None:
    counts = torch.eye(classes, dtype=torch.int64) * 3
    shown = np.asarray(picture(counts, [f"class number {n}" for n in range(classes)]))
    assert shown.shape == (100 + classes * cell, 124 + classes * cell, 3)
    assert tuple(shown[90 + cell // 2 + (cell > 20) * 12, 90 + cell // 8]) == (8, 48, 107)
    assert tuple(shown[90, 90 + classes * cell - 1]) == (255, 255, 255)


def test_a_tiling_shows_the_own_part_and_the_halo() -> None:
    """Of 2 x 2 workers the last one is shown: windows of 5 reach one position further on a map of 8 by 8 than 4 outputs
    at its own places do."""
    layer: Any = LocalFilters((3, 8, 8), maps=2, size=5)
    shown = np.asarray(tiling_picture(Grid(2, 2), [("first", layer)]))
    rows, cols = layer.output_shape[1:]
    assert (rows, cols) == (4, 4)
    left, top, cell = 8, 8 + 15 + 8, 30
    colours = {(r, c): tuple(int(v) for v in shown[top + r * cell + 15, left + c * cell + 15])
               for r in range(8) for c in range(8)}  # fmt: skip
    owned = {place for place, colour in colours.items() if colour == (128, 23, 24)}
    assert owned == {(r, c) for r in range(4, 8) for c in range(4, 8)}
    needed = {place for place, colour in colours.items() if colour in ((31, 119, 180), (255, 127, 14), (44, 160, 44))}
    assert needed | owned == {(r, c) for r in range(2, 8) for c in range(2, 8)}


def test_an_exchange_shows_partners_and_times() -> None:
    messages = [[Message(0.0, 0.25, 1, 10**6), Message(0.5, 1.0, 2, 10**6)], [Message(0.0, 0.25, 0, 10**6)],
                [Message(0.5, 1.0, 0, 10**6)]]  # fmt: skip
    shown = np.asarray(exchange_picture(messages))
    assert shown.shape == (34 + 3 * 30 + 24, 1000, 3)
    blue, orange, green, white = (31, 119, 180), (255, 127, 14), (44, 160, 44), (255, 255, 255)

    def at(worker: int, moment: float) -> tuple[int, ...]:
        return tuple(int(v) for v in shown[34 + worker * 30 + 5, round(70 + 920 * moment)])

    assert [at(0, moment) for moment in (0.1, 0.4, 0.6)] == [orange, white, green]
    assert [at(1, moment) for moment in (0.1, 0.6)] == [blue, white]
    assert [at(2, moment) for moment in (0.1, 0.6)] == [white, blue]
