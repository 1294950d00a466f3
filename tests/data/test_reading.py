"""Who reads batches: threads, processes or the loop itself; nothing is overwritten, lost or left behind."""

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import simplejpeg
import torch
from folders import MODULES
from reading_examples import Waits
from runs import HERE, PATIENCE_S, Freeze, Processes, summary, wait_until

from leyden.datasets.augment import CropFlip
from leyden.datasets.cifar10 import CIFAR10
from leyden.datasets.digits import Digits
from leyden.datasets.hashing import splitmix64, splitmix64_each
from leyden.datasets.synthetic import Synthetic
from leyden.trainer.base.rng import mix, mix_each
from leyden.trainer.config.schema import load
from leyden.trainer.core.batch import BadSamples
from leyden.trainer.data.abilities import changes_batches, has_batches, thread_safe
from leyden.trainer.data.batch_memory import BatchMemory, PinnedMemory, RowLayout
from leyden.trainer.data.batch_reader import SampleBatches
from leyden.trainer.data.chunked_batch import ChunkedBatch
from leyden.trainer.data.collation import CollateSamples
from leyden.trainer.data.datamodule import ImageData
from leyden.trainer.data.reading_threads import ReadingThreads
from leyden.trainer.data.splits import Reader, Subset, plain_sample
from leyden.trainer.data.thread_count import ThreadCount
from leyden.trainer.data.threaded_batches import ThreadedBatches
from leyden.trainer.entrypoints.start import start

WAITS = ["dataset=synthetic", "~dataset.samples", "~dataset.classes", "~dataset.image_shape",
         "dataset._target_=reading_examples.Waits", "model=mlp", "model.hidden=[4]", "batch_size=8", HERE]  # fmt: skip


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("leyden-reader")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    if readers():
        gc.collect()
        wait_until(lambda: not readers())


def waiting(freeze: Freeze, name: str, *overrides: str, share: tuple[int, int] = (0, 1)) -> ImageData:
    return ImageData(load(freeze(name, *WAITS, *overrides)), share)


def source(dataset: Any, replace_bad: bool = True) -> SampleBatches[Any]:
    return SampleBatches(Reader(dataset, plain_sample, replace_bad), CollateSamples())


# --- memory


LAYOUT = RowLayout(1, torch.Size((3, 4, 5)), torch.uint8, channels_last=True)


def test_a_batch_that_somebody_keeps_is_not_overwritten() -> None:
    memory = BatchMemory(most=2)
    first = memory.lend(LAYOUT, 4).images.fill_(1)
    assert first.is_contiguous(memory_format=torch.channels_last)
    place, kept = first.data_ptr(), first[2:3]
    as_array = kept.numpy()
    del first
    assert memory.lend(LAYOUT, 4).images.fill_(2).data_ptr() != place
    del kept
    assert memory.lend(LAYOUT, 4).images.fill_(3).data_ptr() != place
    assert as_array.max() == 1
    del as_array
    places = {memory.lend(LAYOUT, 4).images.data_ptr() for _ in range(5)}
    assert len(places) == 1, "memory that nobody refers to is used again"
    larger = memory.lend(LAYOUT, 400).images
    assert larger.shape == (400, 3, 4, 5)


class Copy:
    """An event after a copy."""

    def __init__(self) -> None:
        self.made = False

    def query(self) -> bool:
        return self.made


def test_memory_that_a_copy_reads_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory, **k: empty(*a, **k))  # a CPU build can pin nothing
    memory, copy = PinnedMemory(most=3), Copy()
    lent = memory.lend(LAYOUT, 4)
    memory.give_back(lent, copy)
    other = memory.lend(LAYOUT, 4)
    assert other.images.data_ptr() != lent.images.data_ptr()
    copy.made = True
    assert memory.lend(LAYOUT, 4).images.data_ptr() == lent.images.data_ptr()


# --- threads


def test_chunks_run_in_their_order_and_no_more_at_once_than_allowed() -> None:
    threads, began, lock = ReadingThreads(2), [], threading.Lock()
    go, running, most = threading.Event(), [0], [0]

    def chunk(number: int) -> None:
        with lock:
            began.append(number)
            running[0] += 1
            most[0] = max(most)
            most.append(running[0])
        go.wait(10)
        with lock:
            running[0] -= 1

    for number in range(12):
        threads.add(lambda number=number: chunk(number), 3)
    wait_until(lambda: len(began) == 2)
    go.set()
    wait_until(lambda: threads.samples == 36)
    assert began[:2] in ([0, 1], [1, 0])
    assert sorted(began) == list(range(12))
    assert max(most) == 2
    busy = threads.busy_seconds()
    assert threads.busy_seconds() == busy > 0, "nothing is read any more"
    threads.close()
    assert not readers()


def test_threads_end_with_what_they_belong_to() -> None:
    threads = ReadingThreads(2)
    threads.add(lambda: None, 1)
    assert len(readers()) == 2
    del threads  # the fixture waits for their end


def test_reading_leaves_the_number_of_compute_threads_as_it_was() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        threads, inside, later = ReadingThreads(3), list[int](), list[int]()
        for _ in range(6):
            threads.add(lambda: inside.append(torch.get_num_threads()), 1)
        wait_until(lambda: len(inside) == 6)
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert (set(inside), torch.get_num_threads(), later) == ({1}, 2, [2])
        threads.close()
    finally:
        torch.set_num_threads(before)


def test_a_process_ends_while_its_threads_read() -> None:
    script = (
        "import sys, time\n"
        "from leyden.trainer.data.reading_threads import ReadingThreads\n"
        "import torch\n"
        "def read():\n"
        "    for _ in range(20): torch.randn(200, 200).mul_(2).sum()\n"
        "threads = ReadingThreads(2)\n"
        "for _ in range(4000): threads.add(read, 1)\n"
        "time.sleep(0.05)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("as_fast", [0.5, 0.9, 0.99])
def test_the_number_of_threads_is_the_smallest_that_is_as_fast(as_fast: float) -> None:
    class Reads:
        limit, samples, seconds = 8, 0, 0.0

        def busy_seconds(self) -> float:
            return self.seconds

        def batch(self) -> None:
            rate = 1000 * min(1.0, self.limit / 4) * (1.0 if self.limit >= 4 else as_fast * 4 / self.limit)
            self.samples += 64
            self.seconds += 64 / rate

    reads: Any = Reads()
    count = ThreadCount(reads)
    for _ in range(200):
        reads.batch()
        count.after_batch()
    assert reads.limit == (4 if as_fast < 0.95 else 1 if as_fast == 0.99 else 4)
    assert set(count.measured) == ({8, 4, 2} if as_fast < 0.95 else {8, 4, 2, 1})


# --- batches


@pytest.mark.parametrize("chunk", [1, 3, 8, 50])
@pytest.mark.parametrize("lent", [False, True])
def test_a_batch_in_chunks_is_the_batch_as_a_whole(chunk: int, lent: bool) -> None:
    reads = source(Waits("train"))
    pairs = [(index, 0) for index in (3, 9, 1, 30, 9, 22, 0, 5)]
    images, labels = reads.read(pairs).batch
    layout = RowLayout.of(images, 1)
    assert layout is not None
    room = BatchMemory(1).lend(layout, len(pairs)) if lent else None
    batch = ChunkedBatch(reads, pairs, chunk, layout if lent else None, room)
    for call in reversed(list(batch.calls())):
        call()
    found, found_labels = batch.wait().batch
    assert torch.equal(found, images)
    assert torch.equal(found_labels, labels)
    assert room is None or found.data_ptr() == room.images.data_ptr()
    assert batch.layout == layout


class Odd(Waits):
    """One image of another size, and two that cannot be read."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index in (4, 5):
            raise ValueError(f"{index} is bad")
        image, label = super().__getitem__(index)
        return (image if index != 7 else image[:, :2]), label


def in_threads(reads: SampleBatches[Any], batches: list[list[tuple[int, int]]]) -> list[Any]:
    threads = ThreadedBatches(2, 2, 2, None)
    try:
        return list(threads.read("train", reads, batches))
    finally:
        threads.close()


@pytest.mark.parametrize("replace_bad", [True, False])
def test_bad_samples_are_replaced_or_left_out_as_without_threads(replace_bad: bool) -> None:
    reads = source(Odd("train"), replace_bad)
    batches = [[(i, 0) for i in range(10, 14)], [(4, 0), (20, 0), (5, 0), (21, 0)], [(4, 0)], [(3, 0), (12, 0)]]
    expected = [reads.read(pairs) for pairs in batches]
    found = in_threads(reads, batches)
    assert [each.problems for each in found] == [each.problems for each in expected]
    assert sorted({problem for each in found for problem in each.problems}) == ["4 is bad", "5 is bad"]
    for one, other in zip(found, expected, strict=True):
        assert (one.batch is None) == (other.batch is None)
        if one.batch is not None:
            assert torch.equal(one.batch[0], other.batch[0])
            assert torch.equal(one.batch[1], other.batch[1])


def test_images_of_different_sizes_are_the_error_that_they_are_without_threads() -> None:
    reads, pairs = source(Odd("train")), [(8, 0), (7, 0)]
    with pytest.raises(RuntimeError, match="equal size"):
        reads.read(pairs)
    for before in ([], [[(10, 0), (11, 0)]]):
        with pytest.raises(RuntimeError, match="equal size"):
            in_threads(reads, [*before, pairs])


def test_batches_that_a_task_keeps_stay_as_they_are() -> None:
    reads = source(Waits("train"))
    batches = [[(4 * batch + i, 0) for i in range(4)] for batch in range(10)]
    threads = ThreadedBatches(2, 2, 2, None)
    kept = list(threads.read("train", reads, batches * 3))
    assert [each.batch[0][:, 0, 0, 0].tolist() for each in kept] == [[float(i) for i, _ in b] for b in batches] * 3
    del kept
    places = {each.batch[0].data_ptr() for each in threads.read("train", reads, batches * 3)}
    assert len(places) <= 6, "the memory of a few batches serves all"
    threads.close()


@pytest.mark.parametrize(("threads", "prefetch"), [(2, 3), (1, 0)])
def test_batches_are_read_ahead_and_no_further(freeze: Freeze, threads: int, prefetch: int) -> None:
    data = waiting(freeze, "run", f"dataset.threads={threads}", f"dataset.prefetch={prefetch}")
    dataset: Any = data.train_set
    dataset = getattr(dataset, "dataset", dataset)
    parts = data.train_parts(0)
    next(parts)
    wait_until(lambda: len(dataset.read) == 8 * (1 + min(prefetch, 3)))
    next(parts)
    wait_until(lambda: len(dataset.read) == 8 * min(5, 2 + prefetch))
    assert all(name.startswith("leyden-reader") for name in dataset.threads)
    assert len(list(parts)) == 3
    data.close()
    assert len(list(data.train_parts(0))) == 5, "by new threads"
    data.close()


def test_tickets_are_not_drawn_ahead_where_they_may_not_be(freeze: Freeze) -> None:
    data = waiting(freeze, "run", "dataset.threads=2", "dataset.prefetch=3")
    drawn: list[int] = []
    tickets = (drawn.append(number) or number for number in range(4))
    for number, part in enumerate(data.ticket_parts(0, tickets, reads_ahead=False)):
        assert drawn == list(range(number + 1))
        assert part.samples == 8
    drawn.clear()
    next(data.ticket_parts(0, (drawn.append(number) or number for number in range(4)), reads_ahead=True))
    assert len(drawn) == 4
    data.close()


def test_what_is_not_wanted_any_more_is_not_read(freeze: Freeze) -> None:
    data = waiting(freeze, "run", "dataset.threads=1", "+dataset.seconds=0.01")
    dataset: Any = data.train_set
    dataset = getattr(dataset, "dataset", dataset)
    parts = data.train_parts(0)
    next(parts)
    parts.close()  # pyright: ignore[reportAttributeAccessIssue]
    read = len(dataset.read)
    next(data.evaluation_batches("val"))
    assert len(dataset.read) <= read + 2
    data.close()


def test_an_error_of_a_reader_ends_the_run_and_its_threads(freeze: Freeze, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *WAITS, "dataset.threads=2", "+dataset.fails=5", "logger=none", "callbacks=none")
    assert start(run_dir) == 1
    assert "sample 5 is beyond repair" in capfd.readouterr().err
    assert "sample 5 is beyond repair" in summary(run_dir)["error"]
    assert not readers()


def test_threads_end_with_the_run(freeze: Freeze) -> None:
    run_dir = freeze("run", *WAITS, "dataset.threads=2", "logger=none", "callbacks=none", "trainer.max_steps=3")
    assert start(run_dir) == 0
    assert not readers()


def test_processes_live_as_long_as_the_run(freeze: Freeze) -> None:
    data = waiting(freeze, "run", "dataset.num_workers=2")
    expected = [part.batch[0] for part in waiting(freeze, "loop", "dataset.threads=0").train_parts(1)]

    def own() -> set[int]:
        return {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}

    before = own()
    list(data.train_parts(0))
    begun = own() - before
    assert len(begun) == 2
    next(data.train_parts(0, first_step=1))  # left in the middle
    found = [part.batch[0] for part in data.train_parts(1)]
    assert own() - before == begun
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert [samples for _, samples in data.evaluation_batches("val")] == [8] * 5
    data.close()
    gc.collect()
    wait_until(lambda: own() == before, 10)
    assert not readers()


@pytest.mark.slow
def test_a_process_ends_whose_error_keeps_the_batches_of_reading_processes(freeze: Freeze) -> None:
    run_dir = freeze("run", *WAITS, "dataset.num_workers=1")
    script = (
        "from leyden.trainer.config.schema import load\n"
        "from leyden.trainer.data.datamodule import ImageData\n"
        "from pathlib import Path\n"
        f"data = ImageData(load(Path({str(run_dir)!r})), (0, 1))\n"
        "batches = data.train_parts(0)\n"
        "next(batches)\n"
        "raise RuntimeError('of the user')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=MODULES, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "RuntimeError: of the user")


ORPHANED = """
import multiprocessing, os, signal, time
from leyden.trainer.base.signals import IgnoreStopSignals

def read(worker):
    while os.getppid() == worker:
        time.sleep(0.01)
    IgnoreStopSignals()(0)
    print("reads", flush=True)

multiprocessing.get_context("fork").Process(target=read, args=(os.getpid(),)).start()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_reading_process_whose_worker_was_killed_before_it_began_ends() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHANED], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("", "")


# --- who reads


class Overrides(Digits):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return super().__getitem__(index)


class Renewed(Overrides):
    thread_safe = True


def test_what_a_class_says_of_its_methods_does_not_hold_for_those_of_a_subclass() -> None:
    digits: Any = Digits("test", 8)
    overrides: Any = Overrides("test", 8)
    renewed: Any = Renewed("test", 8)
    assert (thread_safe(digits), thread_safe(overrides), thread_safe(renewed)) == (True, False, True)
    assert (has_batches(digits), has_batches(overrides), has_batches(renewed)) == (True, False, False)
    assert has_batches(Subset(digits, [1, 2]))
    assert not has_batches(Subset(overrides, [1, 2]))
    assert thread_safe(Subset(renewed, [3]))
    assert not thread_safe(Subset(overrides, [3]))
    assert not thread_safe(digits, lambda image, key: image)
    assert thread_safe(digits, CropFlip())

    class Other(CropFlip):
        def __call__(self, image: torch.Tensor, key: int) -> torch.Tensor:
            return image

    assert changes_batches(CropFlip())
    assert not changes_batches(Other())
    assert not thread_safe(digits, Other())


def test_only_what_is_known_to_be_safe_is_read_by_threads_unasked(freeze: Freeze) -> None:
    safe = waiting(freeze, "safe")
    list(safe.train_parts(0))
    assert readers()
    safe.close()
    digits = ImageData(load(freeze("digits", "model=mlp")), (0, 1))
    list(digits.train_parts(0, end=2))
    assert not readers(), "a batch in memory is read as a whole, by the loop"
    for name, override in (("none", "dataset.threads=0"), ("own", "dataset._target_=reading_examples.Waits")):
        data = waiting(freeze, name, override)
        if name == "own":
            data.train_set.__class__.thread_safe = False  # pyright: ignore[reportAttributeAccessIssue]
            try:
                data = waiting(freeze, "again", override)
            finally:
                data.train_set.__class__.thread_safe = True  # pyright: ignore[reportAttributeAccessIssue]
        list(data.train_parts(0))
        assert not readers(), name


# --- batches of datasets in memory


def cifar10(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        records = generator.integers(0, 256, (40, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())
    return folder


@pytest.mark.parametrize("kind", ["digits", "cifar10", "synthetic"])
def test_a_whole_batch_is_its_samples(kind: str, tmp_path: Path) -> None:
    dataset: Any = {
        "digits": lambda: Digits("train"),
        "cifar10": lambda: CIFAR10("train", cifar10(tmp_path)),
        "synthetic": lambda: Synthetic("train", 100),
    }[kind]()
    wanted = [5, 0, 99, 5, 31]
    for reads, numbers in ((dataset, wanted), (Subset(dataset, wanted), [4, 0, 2])):
        images, labels = reads.batch(torch.tensor(numbers))
        expected = [reads[number] for number in numbers]
        assert torch.equal(images, torch.stack([image for image, _ in expected]))
        assert labels.tolist() == [label for _, label in expected]
        before = dataset[5][0].clone()
        images.zero_()
        assert torch.equal(dataset[5][0], before), "in memory of its own"


@pytest.mark.parametrize("padding", [0, 2, 4, 40])
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crops_and_flips_of_a_batch_are_those_of_its_images(padding: int, flip: bool, dtype: torch.dtype) -> None:
    augment = CropFlip(padding, flip)
    images = torch.randint(1, 256, (64, 3, 9, 14)).to(dtype)
    keys = [(index * 0x9E3779B97F4A7C15) >> 1 & (2**63 - 1) for index in range(64)]
    expected = torch.stack([augment(image, key) for image, key in zip(images, keys, strict=True)])
    found = augment.augment_images(images.clone(), keys)
    assert torch.equal(found, expected)
    assert found.is_contiguous()


@pytest.mark.parametrize("augment", ["crop_flip", "airbench", "none"])
def test_batches_in_memory_are_those_of_single_samples(freeze: Freeze, tmp_path: Path, augment: str) -> None:
    """As in earlier versions: bit by bit, at any share of the batch."""
    options = ["dataset=cifar10", f"dataset.root={cifar10(tmp_path)}", "model=mlp", "batch_size=30",
               f"augment={augment}"]  # fmt: skip
    for share in ((0, 1), (1, 2)):
        name = f"{share[1]}"
        whole = ImageData(load(freeze(f"whole{name}", *options)), share)
        single = ImageData(load(freeze(f"single{name}", *options, "dataset.threads=0")), share)
        dataset: Any = single.train_set
        del dataset.batch  # of the subset
        dataset.dataset.__class__ = Overridden
        for one, other in zip(whole.train_parts(3, 1), single.train_parts(3, 1), strict=True):
            expected = single.on_after_batch_transfer(other.batch, 0)
            assert torch.equal(whole.on_after_batch_transfer(one.batch, 0)[0], expected[0])
            assert torch.equal(one.batch[1], other.batch[1])
            assert one.keys is not None
            assert other.keys is not None
            assert torch.equal(one.keys, other.keys)


class Overridden(CIFAR10):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return super().__getitem__(index)


# --- a run on images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """40 training and 10 validation images of two classes."""
    for split, count in (("train", 40), ("val", 10)):
        for number in range(count):
            y, x = np.mgrid[0 : 20 + number, 0:32]
            pixels = np.stack([x * 3, y * 3 + number, (x + 5 * number) % 256], axis=2).clip(0, 255).astype(np.uint8)
            place = tmp_path / "images" / split / ("dark", "light")[number % 2] / f"{number:02}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=95))
    return tmp_path / "images"


def images(freeze: Freeze, folder: Path, name: str, *more: str) -> ImageData:
    options = ["dataset=image_folder", f"dataset.root={folder}",
               "dataset.image_size=16", "batch_size=8", "model=mlp", "augment=[imagenet,mixup]", HERE]  # fmt: skip
    return ImageData(load(freeze(name, *options, *more)), (0, 1))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("more", [[], ["augment.crop.views=2"], ["augment.size={0:8,1:12}"], ["augment=none"]])
def test_threads_read_the_same_images(freeze: Freeze, folder: Path, more: list[str]) -> None:
    here = images(freeze, folder, "here", "dataset.threads=0", *more)
    auto = images(freeze, folder, "auto", *more)
    three = images(freeze, folder, "three", "dataset.threads=3", "dataset.prefetch=1", *more)
    for epoch in (0, 1, 0):
        expected = [here.on_after_batch_transfer(part.batch, 0) for part in here.train_parts(epoch)]
        for data in (auto, three):
            found = list(data.train_parts(epoch))
            for part, (pixels, labels) in zip(found, expected, strict=True):
                changed, found_labels = data.on_after_batch_transfer(part.batch, 0)
                assert torch.equal(changed, pixels)
                assert torch.equal(found_labels, labels)
            in_middle = data.train_parts(epoch, first_step=3)
            next(in_middle)
            for (batch, samples), (wanted, count) in zip(
                data.evaluation_batches("val"), here.evaluation_batches("val"), strict=True
            ):
                assert samples == count
                assert torch.equal(batch[0], wanted[0])
            last = data.on_after_batch_transfer(next(in_middle).batch, 0)
            assert torch.equal(last[0], expected[4][0]), "an evaluation came between two steps"
    auto.close()
    three.close()


def test_bad_images_are_counted_as_by_the_loop(freeze: Freeze, folder: Path) -> None:
    for number in (6, 13):
        bad = folder / "train" / ("dark", "light")[number % 2] / f"{number:02}.jpg"
        bad.write_bytes(bad.read_bytes()[:200])
    counted: list[list[str]] = []
    for threads in (0, 3):
        data = images(freeze, folder, f"run{threads}", f"dataset.threads={threads}", "dataset.max_bad_samples=2")
        list(data.train_parts(0))
        counted.append(list(data.bad_samples))
        data.close()
    assert counted[0] == counted[1]
    assert len(counted[0]) == 2
    data = images(freeze, folder, "refused", "dataset.threads=3", "dataset.max_bad_samples=1")
    with pytest.raises(BadSamples, match=r"2 so far; dataset\.max_bad_samples=1 are skipped"):
        list(data.train_parts(0))
    data.close()


def test_keys_of_a_batch_are_those_of_its_samples() -> None:
    words = [0, 1, 49_999, 2**31, 2**62, -1]
    assert mix_each((3, 7), words) == [mix(3, 7, word) for word in words]
    assert mix_each((), words) == [mix(word) for word in words]
    keys = [0, 5, 2**63 - 1, 2**64 - 1]
    assert splitmix64_each(keys).tolist() == [splitmix64(key) for key in keys]


@pytest.mark.slow
def test_a_reader_that_is_stuck_is_named_with_its_stack(freeze: Freeze, processes: Processes) -> None:
    stuck = ["dataset._target_=hang_examples.Stuck", "+dataset.rank=0", "+dataset.after=200", "dataset.threads=2",
             "trainer.hang_timeout=3", "model=mlp", "dataset.image_size=8", HERE]  # fmt: skip
    run_dir = freeze("run", *stuck)
    code, output = processes.run(run_dir)
    assert code == 1, output
    assert "is behind, in data, at step" in output
    stacks = (run_dir / "hang" / "rank-0.txt").read_text()
    assert "hang_examples.py" in stacks
    assert "reading_threads.py" in stacks
