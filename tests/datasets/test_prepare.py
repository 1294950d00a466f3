"""`leyden prepare`: shards that are whole or not there, the same however often it was interrupted."""

import fcntl
import os
import resource
import shutil
import signal
import tarfile
import time
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from runs import PATIENCE_S
from shard_examples import SIDE, TREE, contents, jpeg, photographs, pixels, preparation, prepared, silent

from leyden.datasets.decode import decode
from leyden.datasets.shards.dataset import Shards
from leyden.datasets.shards.encode import Encoder
from leyden.datasets.shards.prepare import Preparation
from leyden.datasets.synthetic import Synthetic
from leyden.trainer.cli.main import main


def test_jpeg_shards_hold_small_files_as_they_are_and_shrink_the_others(tmp_path: Path) -> None:
    out = prepared(tmp_path)
    data = Shards("train", out, image_size=16)
    assert data.splits == ("train", "val")
    assert data.class_names == ("cat", "dog")
    assert (len(data), len(Shards("val", out))) == (5, 2)
    assert [data[i][1] for i in range(5)] == [0, 0, 0, 1, 1]
    assert [Shards("val", out)[i][1] for i in range(2)] == [0, 1]
    assert data.original(1)[0] == TREE["train/cat/2.jpg"], "not encoded again"
    sizes = [(24, 36), (20, 30), (24, 31), (45, 24), (32, 24)]
    for index, ((height, width), number) in enumerate(zip(sizes, (1, 2, 3, 4, 5), strict=True)):
        file, _ = data.original(index)
        assert isinstance(file, bytes)
        found = decode(file, "")
        assert found.shape == (height, width, 3)
        whole = pixels(number, *np.asarray([(40, 60), (20, 30), (24, 31), (90, 48), (200, 150)])[index])
        expected = np.asarray(Image.fromarray(whole).resize((width, height), Image.Resampling.BILINEAR))
        assert np.abs(found.astype(int) - expected).mean() < 4, "JPEG loses a little"


def test_raw_shards_hold_the_pixels(tmp_path: Path) -> None:
    out = prepared(tmp_path, format="raw")
    data = Shards("train", out, image_size=16)
    kept, label = data.original(2)
    assert label == 0
    assert np.array_equal(kept, pixels(3, 24, 31))
    shrunk, _ = data.original(3)
    expected = np.asarray(Image.fromarray(pixels(4, 90, 48)).resize((24, 45), Image.Resampling.BILINEAR))
    assert np.abs(np.asarray(shrunk).astype(int) - expected).max() <= 2
    assert {path.suffix for path in out.iterdir()} == {".raw", ".npy", ".json"}


def test_any_dataset_of_images_can_be_prepared(tmp_path: Path) -> None:
    class Grey:
        classes = 10
        mean, std = (0.3,), (0.2,)

        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.full((1, 8, 9), 10 * index, dtype=torch.uint8), index

    sources: Any = {"train": Grey(), "test": Synthetic("test", samples=3)}
    Preparation(tmp_path / "raw", sources, format="raw").run(silent)
    data = Shards("train", tmp_path / "raw", image_size=8)
    assert np.array_equal(data.original(2)[0], np.full((8, 9, 3), 20))
    assert data.mean == (0.3, 0.3, 0.3)
    assert data.class_names is None
    test = Shards("test", tmp_path / "raw", image_size=32)
    assert all(torch.equal(test[i][0], Synthetic("test", samples=3)[i][0]) for i in range(3))


def test_shards_can_be_prepared_again_smaller(tmp_path: Path) -> None:
    out = prepared(tmp_path, format="raw")
    sources: Any = {"train": Shards("train", out)}
    Preparation(tmp_path / "small", sources, size=12).run(silent)
    assert decode(Shards("train", tmp_path / "small").original(3)[0], "").shape == (22, 12, 3)  # pyright: ignore[reportArgumentType]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves its files open
def test_webdataset_reads_them(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    out = prepared(tmp_path)
    names = sorted(map(str, out.glob("train-*.tar")))
    assert len(names) == 3
    read = list(webdataset.WebDataset(names, shardshuffle=False, empty_check=False))
    ours = Shards("train", out)
    assert [(sample["__key__"], int(sample["cls"])) for sample in read] == [
        (f"{index:09}", ours[index][1]) for index in range(5)
    ]
    assert [sample["jpg"] for sample in read] == [ours.original(index)[0] for index in range(5)]


def test_a_shard_is_a_plain_tar(tmp_path: Path) -> None:
    out = prepared(tmp_path)
    path = out / "train-000000.tar"
    assert path.stat().st_size % tarfile.RECORDSIZE == 0
    with tarfile.open(path, "r:") as archive:
        members = archive.getmembers()
        assert [(m.name, m.isreg(), m.mtime, m.uid, m.mode) for m in members] == [
            (name, True, 0, 0, 0o644) for name in ("000000000.jpg", "000000000.cls", "000000001.jpg", "000000001.cls")
        ]


# interrupted


class Interrupted(Encoder):
    """Ends the command after some samples."""

    left = 3

    def __call__(self, source: Any, index: int) -> Any:
        Interrupted.left -= 1
        if Interrupted.left < 0:
            raise KeyboardInterrupt
        return super().__call__(source, index)


@pytest.mark.parametrize("kind", ["jpeg", "raw"])
def test_interrupted_and_run_again_it_is_byte_identical(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = contents(prepared(tmp_path / "whole", format=kind))
    photographs(tmp_path / "photographs")
    out = tmp_path / "whole" / "photographs", tmp_path / "again"
    task = preparation(*out, format=kind, threads=1)
    monkeypatch.setattr(Interrupted, "left", 3)
    task._encode = Interrupted(kind, SIDE, 90, 2)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr("leyden.datasets.shards.prepare._CHUNK", 1)
    with pytest.raises(KeyboardInterrupt):
        task.run(silent)
    shards = {path.name: path.stat().st_mtime_ns for path in out[1].glob("train-*")}
    assert list(shards) == [f"train-000000.{'tar' if kind == 'jpeg' else 'raw'}"], "no shard by halves"
    with pytest.raises(ValueError, match="is not finished: run the same leyden prepare again"):
        Shards("train", out[1])
    (out[1] / ".train-000001.tar.99").write_bytes(b"what a killed process leaves")
    again = preparation(*out, format=kind)
    assert again.check()
    again.run(silent)
    assert contents(out[1]) == whole
    assert all((out[1] / name).stat().st_mtime_ns == before for name, before in shards.items()), "not written again"


def prepare_slowly(out: Path, seconds: float) -> None:
    class Slow(Synthetic):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            time.sleep(seconds)
            return super().__getitem__(index)

    Preparation(out, {"train": Slow("train", samples=400)}, shard_size=20, threads=2).run(silent)


@pytest.mark.slow
def test_killed_half_way_and_run_again_it_is_byte_identical(tmp_path: Path) -> None:
    """A process of its own, three kills at random moments."""

    def start(out: str, seconds: float) -> ForkProcess:
        process = get_context("fork").Process(target=prepare_slowly, args=(tmp_path / out, seconds))
        process.start()
        return process

    def code(process: ForkProcess) -> int | None:
        process.join(PATIENCE_S)
        return process.exitcode

    assert code(start("whole", 0.0)) == 0
    for kill in range(3):
        process = start("killed", 0.002)
        until = time.monotonic() + 60
        while len(list((tmp_path / "killed").glob("train-*.tar"))) < 3 * kill + 2 and time.monotonic() < until:
            time.sleep(0.003 * (1 + kill))
        process.kill()
        assert code(process) == -signal.SIGKILL
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").glob("train-*.tar")}
    assert 8 <= len(before) < 20
    assert code(start("killed", 0.0)) == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def test_a_damaged_shard_is_written_again_and_no_other(tmp_path: Path) -> None:
    out = prepared(tmp_path)
    whole = contents(out)
    task = preparation(tmp_path / "photographs", out)
    assert not task.check(), "nothing to do"
    os.truncate(out / "train-000001.tar", 1000)
    (out / "train-000002.tar").unlink()
    kept = {name: (out / name).stat().st_mtime_ns for name in ("train-000000.tar", "val-000000.tar")}
    assert task.check()
    task.run(silent)
    assert contents(out) == whole
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept


def test_a_damaged_index_is_written_again(tmp_path: Path) -> None:
    out = prepared(tmp_path)
    whole = contents(out)
    task = preparation(tmp_path / "photographs", out)
    for name in ("index-train.npy", "index-val.npy"):
        content = bytearray((out / name).read_bytes())
        content[-5] ^= 1
        (out / name).write_bytes(content)
        assert task.check()
        task.run(silent)
        assert contents(out) == whole


def test_only_one_process_writes(tmp_path: Path) -> None:
    task = preparation(photographs(tmp_path / "photographs"), tmp_path / "out")
    (tmp_path / "out" / ".preparing").mkdir(parents=True)
    with (tmp_path / "out" / ".preparing" / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="is being written by another"):
            task.run(silent)
    task.run(silent)


# mistakes


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"size": 0}, "size=0 must be a whole number from 1"),
        ({"size": "big"}, "size=big must be"),
        ({"quality": 101}, "quality=101 must be"),
        ({"shard_size": True}, "shard_size=True must be"),
        ({"threads": 0}, "threads=0 must be"),
        ({"format": "png"}, "format=png must be jpeg or raw"),
    ],
)
def test_values_that_cannot_be(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        preparation(photographs(tmp_path / "photographs"), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    out = prepared(tmp_path)
    photos = tmp_path / "photographs"
    for options, text in (({"size": 16}, "size=24"), ({"quality": 50}, "quality=90"), ({"format": "raw"}, "jpeg")):
        with pytest.raises(ValueError, match=rf"shards holds shards of .*{text}; remove it"):
            preparation(photos, out, **options).check()
    with pytest.raises(ValueError, match="another dataset"):
        preparation(photos, out, source="elsewhere").check()
    with pytest.raises(ValueError, match="is not empty"):
        preparation(photos, photos).check()
    with pytest.raises(ValueError, match="is not a folder"):
        preparation(photos, photos / "train" / "cat" / "1.jpg").check()
    with pytest.raises(ValueError, match="cannot be written"):
        preparation(photos, photos / "train" / "cat" / "1.jpg" / "shards").check()


def test_the_disk_must_have_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = preparation(photographs(tmp_path / "photographs"), tmp_path / "out", format="raw")
    exact = 3 * (24 * 36 + 20 * 30 + 24 * 31 + 45 * 24 + 32 * 24 + 24 * 24 + 10 * 12)
    for free, enough in ((exact, False), (2 * exact, True)):
        usage = type(shutil.disk_usage("/"))(free, 0, free)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, usage=usage: usage)
        if enough:
            assert task.check()
        else:
            with pytest.raises(ValueError, match=r"has no room: about .* for 7 images"):
                task.check()
        monkeypatch.undo()
    assert not (tmp_path / "out").exists()


def test_a_file_that_cannot_be_written_is_named_and_the_next_call_goes_on(tmp_path: Path) -> None:
    whole = contents(prepared(tmp_path, format="raw"))
    task = preparation(tmp_path / "photographs", tmp_path / "out", format="raw")
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4500, hard))  # the second shard is larger
    try:
        with pytest.raises(OSError, match=r"File too large: '.*/out/train-00000\d\.raw'"):
            task.run(silent)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [name for name in contents(tmp_path / "out") if name.startswith(".train")]
    task.run(silent)
    assert contents(tmp_path / "out") == whole


def test_a_dataset_without_images_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    class Floats(Synthetic):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return super().__getitem__(index)[0] / 255, 0

    sources: Any = {"train": Floats("train", samples=5)}
    with pytest.raises(ValueError, match="none of the images tried can be read: sample 0: an image must be uint8"):
        Preparation(tmp_path / "out", sources, max_bad_samples=9).check()
    assert not (tmp_path / "out").exists()


def test_unreadable_images_are_left_out_if_they_may_be(tmp_path: Path) -> None:
    root = photographs(tmp_path / "photographs")
    (root / "train/cat/2.jpg").write_bytes(jpeg(2, 20, 30)[:200])
    with pytest.raises(ValueError, match=r"unreadable sample: .*/cat/2\.jpg: .*\(1 so far; dataset.max_bad_samples=0"):
        preparation(root, tmp_path / "out").run(silent)
    assert preparation(root, tmp_path / "out", max_bad_samples=1).run(silent) == 1
    assert [Shards("train", tmp_path / "out")[i][1] for i in range(4)] == [0, 0, 1, 1]
    assert not preparation(root, tmp_path / "out").check()


# the command


@pytest.fixture
def here(here: Path) -> Path:
    photographs(here / "PHOTOS")
    return here


SOURCE = ["dataset=image_folder", "dataset.root=PHOTOS", "dataset.image_size=16", "model=mlp"]


def test_the_command_writes_and_says_how_to_train(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", *SOURCE, "out=SHARDS", f"size={SIDE}", "shard_size=3"]) == 0
    assert "leyden dataset=shards dataset.root=SHARDS trains from them" in capsys.readouterr().out
    assert len(Shards("train", "SHARDS")) == 5
    assert main(["prepare", *SOURCE, "out=SHARDS", f"size={SIDE}", "shard_size=3"]) == 0
    assert "SHARDS is complete: 7 images" in capsys.readouterr().out
    assert sorted(path.name for path in here.iterdir()) == ["PHOTOS", "SHARDS"]


def test_an_unreadable_image_is_named_and_what_is_whole_stays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("PHOTOS/train/dog/5.jpg").write_bytes(b"text")
    assert main(["prepare", *SOURCE, "out=SHARDS", "shard_size=2"]) == 1
    told = capsys.readouterr().err
    assert "PHOTOS/train/dog/5.jpg: not a JPEG" in told
    assert "the same command goes on" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "out must be named"),
        (["out=PHOTOS"], "is not empty"),
        (["out=SHARDS", "size=small"], "must be a whole number"),
        (["out=SHARDS", "sise=3"], "sise"),
        (["out=SHARDS", "dataset.root=nowhere"], "there is no such file or folder"),
    ],
    ids=str,
)
def test_mistakes_are_named_and_leave_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    before = contents(here)
    assert main(["prepare", *SOURCE, *words]) == 2
    assert text in " ".join(capsys.readouterr().err.split())
    assert contents(here) == before
    assert sorted(path.name for path in here.iterdir()) == ["PHOTOS"]
