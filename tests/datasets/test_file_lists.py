"""The list of files of a folder or an archive is read once, and again after every change."""

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from shard_examples import TREE, photographs, png

from leyden.datasets import files
from leyden.datasets.image_folder import ImageFolder

SPLITS = ("train", "val")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Roots in the order in which they are listed."""
    found: list[Path] = []
    for name in ("_zip_members", "_tar_members"):
        real = getattr(files, name)
        monkeypatch.setattr(files, name, lambda root, *rest, real=real: (found.append(root), real(root, *rest))[1])
    walk = files._Walk.names

    def names(self: Any, root: Path, prefix: str = "", above: Any = ()) -> Any:
        found.extend([] if above else [root])
        return walk(self, root, prefix, above)

    monkeypatch.setattr(files._Walk, "names", names)
    return found


def archive(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as opened:
        for name, data in TREE.items():
            opened.writestr(name, data)
    return path


def settle(root: Path) -> Path:
    """Have a folder or an archive look as if nobody had changed it lately."""
    for path in (root, *root.rglob("*")):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return root


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_all_splits_share_one_list(tmp_path: Path, listings: list[Path], kind: str) -> None:
    root = settle(photographs(tmp_path / "set") if kind == "folder" else archive(tmp_path / "set.zip"))
    data = [ImageFolder(split, root, 8) for split in (*SPLITS, "train")]
    assert len(listings) == 1
    assert [len(each) for each in data] == [5, 2, 5]
    assert data[0][4][0].shape == data[1][1][0].shape == (3, 8, 8)
    del data
    ImageFolder("train", root)
    assert len(listings) == 2, "nobody held it any more"


def test_a_file_more_is_seen(tmp_path: Path, listings: list[Path]) -> None:
    root = settle(photographs(tmp_path / "set"))
    before = ImageFolder("train", root)
    (root / "train" / "dog" / "9.png").write_bytes(png(9, 9, 9))
    again = ImageFolder("train", root)
    assert (len(before), len(again)) == (5, 6)
    os.utime(root / "train" / "dog", (1_000_000_001, 1_000_000_001))
    (root / "train" / "cat" / "3.png").unlink()
    os.utime(root / "train" / "cat", (1_000_000_002, 1_000_000_002))
    assert len(ImageFolder("train", root)) == 5
    assert len(listings) == 3


def test_what_was_just_changed_is_read_again(tmp_path: Path, listings: list[Path]) -> None:
    """Its time of change may not tell the next change from the last."""
    root = archive(tmp_path / "set.zip")
    held = [ImageFolder(split, root) for split in SPLITS]
    assert len(listings) == len(held) == 2


def test_another_file_of_the_same_size_and_time_is_another(tmp_path: Path, listings: list[Path]) -> None:
    root = settle(archive(tmp_path / "set.zip"))
    held = ImageFolder("train", root)
    os.replace(settle(archive(tmp_path / "other.zip")), root)
    assert len(ImageFolder("train", root)) == len(held)
    assert len(listings) == 2


def test_limits_hold_for_who_sets_them(tmp_path: Path) -> None:
    root = settle(archive(tmp_path / "set.zip"))
    held = ImageFolder("train", root)
    with pytest.raises(ValueError, match=r"limits\.members=3"):
        ImageFolder("train", root, limits=files.Limits(members=3))
    assert len(held) == 5


def test_the_list_of_a_large_archive_is_kept_on_the_disk(
    tmp_path: Path, cache: Path, listings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = settle(archive(tmp_path / "set.zip"))
    for _ in range(2):
        ImageFolder("train", root)
    assert not cache.exists(), "a small one is not"
    monkeypatch.setattr(files, "LARGE", 5)
    listings.clear()
    fresh = [ImageFolder("train", root, 8)[i][0].tolist() for i in range(5)]
    assert len(listings) == 1
    kept = [ImageFolder("train", root, 8)[i][0].tolist() for i in range(5)]
    assert kept == fresh
    assert len(listings) == 1
    (only,) = cache.rglob("*.npz")
    only.write_bytes(only.read_bytes()[:-500])
    assert len(ImageFolder("val", root)) == 2, "a damaged one is not used"
    os.utime(root, (1_000_000_005, 1_000_000_005))
    ImageFolder("val", root)
    assert len(listings) == 3
    assert [path != only for path in cache.rglob("*.npz")] == [True], "the older one is gone"
    assert not list(cache.rglob(".*"))


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, listings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGE", 5)
    (tmp_path / "cache").write_text("no folder")
    root = settle(archive(tmp_path / "set.zip"))
    for _ in range(2):
        assert len(ImageFolder("train", root)) == 5
    assert len(listings) == 2
