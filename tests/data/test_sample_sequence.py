"""The k-th sample of an epoch and its pixels are a function of (seed, epoch, k), whoever reads and from wherever."""

import json
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import HERE, Freeze, Processes, by_rank, wait_until

from leyden.datasets.image_folder import ImageFolder
from leyden.datasets.shards.prepare import Preparation
from leyden.trainer.config.schema import Config, load
from leyden.trainer.data.datamodule import ImageData

SAMPLES, BATCH, STEPS = 30, 8, 4
drawn = partial(
    settings,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for number in range(SAMPLES):
        y, x = np.mgrid[0 : 20 + number, 0:32]
        pixels = np.stack([x * 3, y * 3 + number, (x + 5 * number) % 256], axis=2).clip(0, 255).astype(np.uint8)
        place = root / "train" / ("dark", "light")[number % 2] / f"{number:02}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=95))
    return root


def options(folder: Path, *more: str, dataset: str = "image_folder") -> list[str]:
    return [f"dataset={dataset}", f"dataset.root={folder}",
            "dataset.val_fraction=0", "dataset.image_size=16", f"batch_size={BATCH}", "model=mlp", "model.hidden=[4]",
            "augment=imagenet", HERE, *more]  # fmt: skip


def read(config: Config, epoch: int, first: int, workers: int, **loading: object) -> list[list[torch.Tensor]]:
    """Rows of each step from the first on, in the order of the samples: each worker reads its share."""
    dataset = config.dataset.model_copy(update=loading)
    config = config.model_copy(update={"dataset": dataset})
    steps: list[list[torch.Tensor]] = []
    for worker in range(workers):
        data = ImageData(config, (worker, workers))
        for step, part in enumerate(data.train_parts(epoch, first)):
            images, labels, keys = part.batch
            rows = [torch.cat([image.flatten().long(), torch.stack([label, key, index, flip.long()])])
                    for image, label, key, index, flip in zip(images, labels, *keys[:3], strict=True)]  # fmt: skip
            steps += [[]] if worker == 0 else []
            steps[step] += rows[: part.samples]
        data.close()
    return steps


def assert_same(found: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(torch.stack(one), torch.stack(other))


@pytest.fixture
def sequence(freeze: Freeze, folder: Path) -> Callable[..., None]:
    """Holds one way to read against the loop itself, from the epoch's first step on."""
    frozen = load(freeze("run", *options(folder)))
    expected: dict[tuple[int, int], list[list[torch.Tensor]]] = {}

    def check(seed: int, epoch: int, first: int, workers: int, **loading: object) -> None:
        config = frozen.model_copy(update={"seed": seed})
        if (seed, epoch) not in expected:
            expected[seed, epoch] = read(config, epoch, 0, 1, threads=0)
        assert_same(read(config, epoch, first, workers, **loading), expected[seed, epoch][first:])

    return check


@drawn(max_examples=40)
@given(
    seed=st.integers(0, 2), epoch=st.integers(0, 2), first=st.integers(0, STEPS - 1),
    workers=st.sampled_from([1, 2, 4]), threads=st.sampled_from([0, 1, 2, 5, "auto"]), prefetch=st.integers(0, 5),
)  # fmt: skip
def test_the_sequence_is_one_for_all_threads_positions_and_workers(
    sequence: Callable[..., None], seed: int, epoch: int, first: int, workers: int, threads: object, prefetch: int
) -> None:
    sequence(seed, epoch, first, workers, threads=threads, prefetch=prefetch)


@pytest.fixture
def blocks(freeze: Freeze, folder: Path, tmp_path: Path) -> Callable[..., None]:
    """As `sequence`, in an order of blocks of shards."""
    shards = tmp_path / "shards"
    Preparation(shards, {"train": ImageFolder("train", folder)}, size=None, shard_size=11).run(lambda *_: None)
    frozen = load(freeze("blocks", *options(shards, "dataset.shuffling=blocks", dataset="shards")))
    expected: dict[tuple[object, ...], list[list[torch.Tensor]]] = {}

    def check(
        seed: int, epoch: int, first: int, workers: int, block: int, buffer: int, held_out: float, **loading: object
    ) -> None:
        keys = {"shuffle_block": block, "shuffle_buffer": buffer, "val_fraction": held_out}
        dataset = frozen.dataset.model_copy(update=keys)
        config = frozen.model_copy(update={"seed": seed, "dataset": dataset})
        case = (seed, epoch, *keys.values())
        if case not in expected:
            expected[case] = read(config, epoch, 0, 1, threads=0)
        assert_same(read(config, epoch, first, workers, **loading), expected[case][first:])

    return check


@drawn(max_examples=40)
@given(
    seed=st.integers(0, 1), epoch=st.integers(0, 1), first=st.integers(0, STEPS - 1),
    workers=st.sampled_from([1, 2, 4]), threads=st.sampled_from([0, 1, 5, "auto"]), prefetch=st.integers(0, 3),
    block=st.sampled_from([1, 4, 7, 40]), buffer=st.integers(1, 3), held_out=st.sampled_from([0.0, 0.1]),
)  # fmt: skip
def test_an_order_of_blocks_is_one_for_all_threads_positions_and_workers(
    blocks: Callable[..., None], **case: object
) -> None:
    blocks(**case)


@pytest.mark.slow
@drawn(max_examples=8)
@given(epoch=st.integers(0, 1), first=st.integers(0, STEPS - 1), workers=st.sampled_from([1, 2]),
       processes=st.integers(1, 2))  # fmt: skip
def test_an_order_of_blocks_is_one_for_all_processes(
    blocks: Callable[..., None], epoch: int, first: int, workers: int, processes: int
) -> None:
    blocks(0, epoch, first, workers, 4, 2, 0.0, num_workers=processes)


@pytest.mark.slow
@drawn(max_examples=12)
@given(
    epoch=st.integers(0, 2), first=st.integers(0, STEPS - 1), workers=st.sampled_from([1, 2]),
    processes=st.integers(1, 2), prefetch=st.integers(0, 3),
)  # fmt: skip
def test_the_sequence_is_one_for_all_processes(
    sequence: Callable[..., None], epoch: int, first: int, workers: int, processes: int, prefetch: int
) -> None:
    sequence(0, epoch, first, workers, num_workers=processes, prefetch=prefetch)


# --- kills


def recorded(file: Path, workers: int) -> dict[int, list[str]]:
    """Digests of the samples of each step, those of all workers; trained again after a kill, they must be the same."""
    steps: dict[int, list[str]] = {}
    for rank in range(workers):
        mine: dict[int, list[str]] = {}
        for line in file.with_name(f"{file.name}.{rank}").read_text().splitlines():
            step, *digests = line.split() or [""]
            if digests[-1:] == ["end"]:  # else the worker was killed while it wrote
                assert mine.setdefault(int(step), digests[:-1]) == digests[:-1]
        for step, digests in mine.items():
            steps.setdefault(step, []).extend(digests)
    return steps


def recording(folder: Path, file: Path, workers: int, epochs: int, *more: str) -> list[str]:
    return options(
        folder, "augment.batch=null", f"trainer.max_epochs={epochs}", "callbacks.checkpoint.every_n_steps=2",
        "logger=none", "+callbacks.record._target_=reading_examples.RecordBatches", f"+callbacks.record.file={file}",
        "+callbacks.record.pause_s=0.05", "trainer.enable_progress_bar=false", "trainer.exact_dropout=false",
        "topology=cpu", f"topology.devices_per_node={workers}", f"strategy={'ddp' if workers > 1 else 'single'}", *more,
    )  # fmt: skip


def killed(processes: Processes, run_dir: Path, file: Path, draw: random.Random, most: int) -> int:
    """Kill a run, one of its workers or all, at random times, and let it end. Returns the number of kills."""
    kills, verb = 0, "train"
    first = file.with_name(f"{file.name}.0")
    while True:
        process = processes.start(run_dir, verb)
        before = first.stat().st_size if first.exists() else 0
        wait_until(lambda: process.poll() is not None or (first.exists() and first.stat().st_size > before))  # noqa: B023
        time.sleep(draw.uniform(0, 0.6))
        if process.poll() is None and kills < most:
            victims = [process.pid, *by_rank(process.pid).values()]
            os.kill(draw.choice(victims), signal.SIGKILL)
            kills += 1
        output, _ = process.communicate(timeout=120)
        if process.returncode == 0:
            return kills
        assert process.returncode in (-signal.SIGKILL, 1), output
        verb = "resume"


READERS = ["dataset.threads=2", "dataset.num_workers=2", "dataset.threads=0"]
WAYS = [((1, 2, 4)[number % 3], READERS[(number + number // 3) % 3]) for number in range(9)]
"""Workers, and who reads for each of them: every pair, the first three all different."""
KILLS_OF_A_RUN = 2


def kill(
    freeze: Freeze, processes: Processes, folder: Path, tmp_path: Path, times: int, first: int = 0,
    seconds: float = math.inf, epochs: int = 15,
) -> None:  # fmt: skip
    """Kill runs so many times in all, and print what was found.

    Args:
        first: number of the first run, by which the runs of several calls differ.
        seconds: no run is begun after them.
        epochs: of a run.
    """
    draw, number, end = random.Random(first), first, time.monotonic() + seconds
    kills, right = Counter[str](), Counter[str]()
    whole = tmp_path / "whole.txt"
    assert processes.run(freeze("whole", *recording(folder, whole, 1, epochs)))[0] == 0
    expected = recorded(whole, 1)
    assert len(expected) == epochs * STEPS
    while kills.total() < times and time.monotonic() < end:
        workers, reader = WAYS[number % len(WAYS)]
        file = tmp_path / f"{number}.txt"
        run_dir = freeze(f"killed{number}", *recording(folder, file, workers, epochs, reader))
        way = f"workers: {workers}, `{reader}`"
        count = killed(processes, run_dir, file, draw, min(KILLS_OF_A_RUN, times - kills.total()))
        kills[way] += count
        same = recorded(file, workers) == expected
        right[way] += count * same
        number += 1
        assert same, way
    rows = [{"what": way, "kills": kills[way], "right": right[way]} for way in kills]
    print(json.dumps({"kills": rows, "next": number}))


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_same_samples(
    freeze: Freeze, processes: Processes, folder: Path, tmp_path: Path
) -> None:
    """Two workers, whose data processes read; the campaign has the other ways, and several kills of a run."""
    kill(freeze, processes, folder, tmp_path, times=1, first=1, epochs=3)


@pytest.mark.campaign
def test_many_kills_change_no_sample(freeze: Freeze, processes: Processes, folder: Path, tmp_path: Path) -> None:
    times, first = int(os.environ.get("LEYDEN_KILLS", "100")), int(os.environ.get("LEYDEN_KILLS_FIRST", "0"))
    kill(freeze, processes, folder, tmp_path, times, first, float(os.environ.get("LEYDEN_KILLS_SECONDS", "inf")))
