"""Size and header of every file, looked at before the first step."""

import io
import itertools
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from runs import TINY

from leyden.datasets.decode import SUFFIXES
from leyden.datasets.image_folder import ImageFolder
from leyden.datasets.limits import Limits
from leyden.trainer.base.errors import CannotStart
from leyden.trainer.cli.main import main
from leyden.trainer.compose.composer import Composer
from leyden.trainer.data.contents import file_check
from leyden.trainer.data.splits import Splits, Subset

SHORT = ["trainer.max_epochs=1", "trainer.enable_progress_bar=false", "logger=none", "batch_size=2"]
FOLDER = ["dataset=image_folder", "dataset.image_size=8", "dataset.root=set", *TINY, *SHORT]


def picture(suffix: str = ".jpg", side: int = 8, exif_bytes: int = 0) -> bytes:
    file = io.BytesIO()
    image = Image.new("RGB", (side, side))
    names = {".jpg": "JPEG", ".jpe": "JPEG", ".jfif": "JPEG", ".tif": "TIFF", ".apng": "PNG"}
    image.save(file, names.get(suffix, suffix[1:].upper()))
    data = file.getvalue()
    if not exif_bytes:
        return data
    segments = b""
    for size in (min(exif_bytes, 60_000), max(0, exif_bytes - 60_000)):
        segments += b"\xff\xe5" + struct.pack(">H", size + 2) + bytes(size) if size else b""
    return data[:2] + segments + data[2:]


def huge_png() -> bytes:
    data = bytearray(picture(".png"))
    data[16:24] = struct.pack(">II", 30_000, 30_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


BAD = {"empty.jpg": b"", "text.png": b"no picture", "huge.png": huge_png(), "cut.jpg": picture()[:20]}
"""Files that are found, by the class's folder."""


def files(count: int = 4) -> dict[str, bytes]:
    return {f"{name}/{number}.jpg": picture() for name in ("cat", "dog") for number in range(count)}


def folder(root: Path, names: dict[str, bytes]) -> Path:
    for name, data in names.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def zipped(root: Path, names: dict[str, bytes], method: int) -> Path:
    with zipfile.ZipFile(root, "w", method) as archive:
        for name, data in names.items():
            archive.writestr(name, data)
    return root


KINDS: dict[str, Callable[[Path, dict[str, bytes]], Path]] = {
    "folder": folder,
    "stored": lambda root, names: zipped(root, names, zipfile.ZIP_STORED),
    "deflated": lambda root, names: zipped(root, names, zipfile.ZIP_DEFLATED),
}


def problems_of(root: Path, limits: Limits | None = None) -> list[str]:
    data: Any = ImageFolder("train", root, limits=limits or Limits())
    return list(file_check.look_at_files(Splits(data, data, None, None), (0, 1), 60.0).problems)


@pytest.mark.parametrize("kind", KINDS)
def test_all_bad_files_are_named_before_the_first_step(
    kind: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    KINDS[kind](here / "set", files() | {f"dog/{name}": data for name, data in BAD.items()})
    before = sorted(here.rglob("*"))
    assert main(FOLDER) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "4 files cannot be read:" in error
    assert all(f"dog/{name}: " in error for name in BAD)
    assert "the file is empty" in error
    assert "dataset.limits.pixels=250000000" in error
    assert "try: dataset.max_bad_samples=4" in error
    assert sorted(here.rglob("*")) == before
    assert main([*FOLDER, "dataset.max_bad_samples=4"]) == 0, "the remedy works"


def test_those_that_are_allowed_are_counted_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder(here / "set", files() | {f"dog/{name}": data for name, data in BAD.items()})
    assert main([*FOLDER, "dataset.max_bad_samples=4", "hydra.run.dir=run"]) == 0
    log = (here / "run" / "run.log").read_text()
    assert [log.count(name) for name in BAD] == [1, 1, 1, 1]


def test_of_many_the_first_ten_are_named(here: Path) -> None:
    problems = problems_of(folder(here / "set", files() | {f"dog/bad {number:02}.jpg": b"" for number in range(25)}))
    looked = file_check.Looked(len(problems), len(problems), problems)
    with pytest.raises(CannotStart, match="25 files cannot be read:") as told:
        file_check.refuse_unreadable(looked, problems, Composer().run(FOLDER).config.dataset)
    assert str(told.value).count("the file is empty") == 10
    assert "and 15 more" in str(told.value)


def test_zero_seconds_look_at_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder(here / "set", files() | {"dog/bad.jpg": b""})
    assert main([*FOLDER, "dataset.check_files_s=0"]) == 1
    assert "unreadable sample" in capsys.readouterr().err


def test_what_the_time_does_not_suffice_for_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data: Any = ImageFolder("train", folder(tmp_path, files(80) | {"dog/bad.jpg": b""}))
    clock = itertools.count(0, 0.5)
    monkeypatch.setattr(file_check, "monotonic", lambda: next(clock))
    looked = file_check.look_at_files(Splits(data, data, None, None), (0, 1), 1.2)
    assert (looked.files, looked.looked_at) == (161, 64)


def test_splits_and_workers_divide_the_files(tmp_path: Path) -> None:
    root = folder(tmp_path, files(5) | {"dog/bad.jpg": b""})
    data: Any = ImageFolder("train", root)
    held_out = Splits(data, Subset(data, range(4)), Subset(data, range(4, 11)), None)
    parts = [file_check.look_at_files(held_out, (rank, 3), 60.0) for rank in range(3)]
    assert sum(part.files for part in parts) == len(data) == 11
    assert sum(len(part.problems) for part in parts) == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_passes(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFolder, "_pixels", None)  # nothing is decoded
    name = ".jpg" if suffix == ".jpeg" else suffix
    assert problems_of(folder(tmp_path, {f"cat/1{suffix}": picture(name), f"dog/1{suffix}": picture(name)})) == []


@pytest.mark.parametrize("exif_bytes", [10_000, 100_000])
def test_a_size_far_behind_the_beginning_is_found(tmp_path: Path, exif_bytes: int) -> None:
    names = {f"{name}/1.jpg": picture(exif_bytes=exif_bytes) for name in ("cat", "dog")}
    assert problems_of(folder(tmp_path / "a", names)) == []
    assert len(problems_of(folder(tmp_path / "b", names), Limits(pixels=63))) == 2
