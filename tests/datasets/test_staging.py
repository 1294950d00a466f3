"""dataset.stage=node: shards are copied once a node, whole or not at all, and give the same samples."""

import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from shard_examples import prepared
from tar_shards import samples, tar

from leyden.datasets.shards import staging
from leyden.datasets.shards.dataset import Shards


def on_disk(place: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of each copied shard."""
    found = {str(path.relative_to(place)): path.stat() for path in place.rglob("*") if path.suffix in (".tar", ".raw")}
    return {name: (about.st_ino, about.st_mtime_ns) for name, about in found.items()}


def opened(root: Path, place: Path, split: str = "train", **options: Any) -> Shards:
    return Shards(split, root, 16, stage="node", stage_dir=place, **options)


@pytest.mark.parametrize("kind", ["jpeg", "raw"])
def test_samples_are_read_from_the_copies(tmp_path: Path, kind: str) -> None:
    root, place = prepared(tmp_path, format=kind), tmp_path / "local"
    originals = {split: Shards(split, root, 16) for split in ("train", "val")}
    expected = {split: [data[n] for n in range(len(data))] for split, data in originals.items()}
    assert opened(root, place).splits == ("train", "val")
    copies = on_disk(place)
    assert len(copies) == 4
    data = {split: opened(root, place, split) for split in originals}
    assert on_disk(place) == copies, "copied once"
    for path in root.glob("*-0*"):  # what is read are the copies
        path.write_bytes(bytes(path.stat().st_size))
    for split, found in data.items():
        assert found.name(0).startswith(str(place))
        for index, (image, label) in enumerate(expected[split]):
            assert found[index][1] == label
            assert torch.equal(found[index][0], image)


def names_of(root: Path, place: Path, number: int) -> dict[str, tuple[int, int]]:
    assert len(opened(root, place)) == 5
    return on_disk(place)


def test_of_several_processes_one_copies(tmp_path: Path) -> None:
    root = prepared(tmp_path)
    with ProcessPoolExecutor(4, get_context("fork")) as pool:
        found = list(pool.map(partial(names_of, root, tmp_path / "local"), range(8)))
    assert all(each == found[0] for each in found)
    assert not list((tmp_path / "local").rglob(".*.[0-9]*"))


def test_a_changed_shard_is_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root, place = tmp_path / "set", tmp_path / "local"
    tar(root / "train" / "a.tar", samples(1, 2))
    tar(root / "val" / "b.tar", samples(4))
    assert len(opened(root, place)) == 2
    before = on_disk(place)
    tar(root / "train" / "a.tar", samples(1, 2, 5))
    data = opened(root, place)
    assert [data[n][1] for n in range(3)] == [1, 2, 2]
    after = on_disk(place)
    changed = {name for name in after if after[name] != before[name]}
    assert {Path(name).name for name in changed} == {"a.tar"}


def test_an_interrupted_copy_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails in the middle, and what a killed process leaves behind."""
    root, place = prepared(tmp_path), tmp_path / "local"
    read = staging._pieces
    calls: list[Path] = []

    def failing(path: Path) -> Any:
        calls.append(path)
        if len(calls) == 3:
            raise OSError(5, "Input/output error", str(path))
        return read(path)

    monkeypatch.setattr(staging, "_pieces", failing)
    with pytest.raises(OSError, match="Input/output error"):
        opened(root, place)
    whole = on_disk(place)
    assert len(whole) == 1
    next(place.glob("*/*")).joinpath(".train-000001.tar.4711").write_bytes(b"half")
    assert len(opened(root, place)) == 5
    assert on_disk(place).items() > whole.items(), "what was whole stays"
    assert not list(place.rglob(".*.[0-9]*"))


def test_a_disk_that_gives_other_bytes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, place, read = prepared(tmp_path), tmp_path / "local", staging._pieces
    monkeypatch.setattr(staging, "_pieces", lambda p: read(p) if root in p.parents else (b"x" + b for b in read(p)))
    with pytest.raises(ValueError, match="has other bytes than were written"):
        opened(root, place)
    assert on_disk(place) == {}


def test_room_and_rights_are_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, place = prepared(tmp_path), tmp_path / "local"
    with pytest.raises(ValueError, match=r"dataset.stage=all must be none or node"):
        Shards("train", root, stage="all")  # pyright: ignore[reportArgumentType]
    with monkeypatch.context() as full:
        usage = shutil.disk_usage(tmp_path)
        full.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
        with pytest.raises(ValueError, match=r"needs .* GB in .* are free: dataset.stage_dir=FOLDER"):
            opened(root, place)
    assert on_disk(place) == {}
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match=r"dataset.stage_dir=.*file cannot be used"):
        opened(root, tmp_path / "file")
    os.chmod(next(place.iterdir()), 0o777)
    with pytest.raises(ValueError, match="is another user's, or open to others"):
        opened(root, place)
