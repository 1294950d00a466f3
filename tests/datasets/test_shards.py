"""dataset=shards: every image one read away, from prepared shards and from the tars of others."""

import json
import multiprocessing
import operator
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from shard_examples import SIDE, TREE, jpeg, photographs, png, prepared
from tar_shards import samples, tar

from leyden.datasets.image_folder import ImageFolder
from leyden.datasets.shards import shard_files, webdataset
from leyden.datasets.shards.dataset import Shards
from leyden.datasets.shards.index import INDEX, SAMPLE, ShardFile, ShardSet, SplitIndex, write_index, write_rows
from leyden.trainer.core.protocols import CroppingDataset, Dataset


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


# prepared ones


@pytest.mark.parametrize("kind", ["jpeg", "raw"])
def test_samples_crops_and_evaluation_are_those_of_the_stored_images(tmp_path: Path, kind: str) -> None:
    """As an image folder of the same images gives them."""
    out = prepared(tmp_path, format=kind, size=None)
    data = Shards("train", out, 16, resize=20, crop=18)
    folder = ImageFolder("train", tmp_path / "photographs", 16, resize=20, crop=18)
    assert isinstance(data, Dataset)
    assert isinstance(data, CroppingDataset)

    def boxes(height: int, width: int) -> list[tuple[int, int, int, int]]:
        return [(0, 0, width, height), (1, 2, width // 2, height // 2)]

    for index in (0, 1, 4, -1):
        if kind == "raw" or index != 3:
            ours, theirs = data.crops(index, boxes, (8, 8)), folder.crops(index, boxes, (8, 8))
            assert torch.equal(ours[0], theirs[0])
            assert ours[1] == theirs[1]
            room = torch.empty_like(ours[0])
            written, label = data.crops_into(index, boxes, room)
            assert written is room
            assert label == ours[1]
            assert torch.equal(room, ours[0])
            assert torch.equal(data.evaluation_sample(index)[0], folder.evaluation_sample(index)[0])
            assert data[index][0].shape == (3, 16, 16)
    data[0][0].zero_()
    data.crops(0, lambda h, w: [(0, 0, w, h)], (40, 60))[0].zero_()
    data.crops_into(0, lambda h, w: [(0, 0, w, h)], torch.empty(1, 3, 40, 60, dtype=torch.uint8))[0].zero_()
    assert torch.equal(data.crops(0, boxes, (8, 8))[0], folder.crops(0, boxes, (8, 8))[0]), "nobody writes into a shard"
    with pytest.raises(IndexError):
        data[5]


@pytest.mark.parametrize("kind", ["jpeg", "raw"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_and_threads_read_the_same(tmp_path: Path, kind: str, method: str) -> None:
    data = Shards("train", prepared(tmp_path, format=kind), 16)
    expected = [data[i][0] for i in range(5)]
    copy = pickle.loads(pickle.dumps(data))
    assert all(torch.equal(copy[i][0], expected[i]) for i in range(5))
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda i: copy[i % 5][0], range(200)))
    assert all(torch.equal(image, expected[i % 5]) for i, image in enumerate(read))
    if method == "spawn" and kind == "raw":
        return  # a process of its own takes seconds
    with multiprocessing.get_context(method).Pool(1) as pool:
        # no function of this file: new processes cannot import it
        read = pool.starmap(operator.getitem, [(copy, i) for i in range(5)])
        assert all(torch.equal(image, expected[i]) for i, (image, _) in enumerate(read))


def test_a_process_keeps_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "_OPEN", 2)
    for kind in ("jpeg", "raw"):
        data = Shards("train", prepared(tmp_path / kind, format=kind, shard_size=1), 16)
        before = len(os.listdir("/proc/self/fd"))
        for index in (0, 1, 2, 3, 4, 0, 4, 2):
            data[index]
        assert len(os.listdir("/proc/self/fd")) <= before + 2 * (1 + (kind == "raw"))


def test_a_shard_that_is_closed_meanwhile_is_read_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "_OPEN", 1)
    paths = [tmp_path / f"{number}.raw" for number in range(4)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 4096)
    files = shard_files.ShardFiles(paths)

    def read(first: int) -> set[tuple[int, bytes]]:
        return {(n % 4, files.read(n % 4, 0, 4096)) for n in range(first, first + 2000)}

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = set[tuple[int, bytes]]().union(*pool.map(read, range(4)))
    finally:
        sys.setswitchinterval(before)
    assert found == {(number, bytes([number]) * 4096) for number in range(4)}


@pytest.mark.parametrize("kind", ["jpeg", "raw"])
def test_names_are_made_for_errors_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """One takes as long as half of the loader's own work for a sample."""
    data = Shards("train", prepared(tmp_path, format=kind), 16)
    made: list[int] = []
    monkeypatch.setattr(Shards, "name", lambda _, index: made.append(index))
    data.crops(1, lambda height, width: [(0, 0, 8, 8)], (16, 16))
    data.evaluation_sample(2)
    assert not made


def test_splits_and_folders_that_are_not_there(tmp_path: Path) -> None:
    out = prepared(tmp_path)
    with pytest.raises(ValueError, match="no split 'test', only train, val"):
        Shards("test", out)
    with pytest.raises(FileNotFoundError, match="does not exist; expected shards"):
        Shards("train", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        Shards("train", out / INDEX)
    with pytest.raises(ValueError, match="holds no shards"):
        Shards("train", photographs(tmp_path / "photographs"))
    with pytest.raises(ValueError, match="resize=3 must be at least"):
        Shards("train", out, 16, resize=3)


@pytest.mark.parametrize("kind", ["jpeg", "raw"])
def test_damage_is_an_unreadable_sample_named_by_shard_and_offset(tmp_path: Path, kind: str) -> None:
    out = prepared(tmp_path, format=kind)
    data = Shards("train", out, 16)
    stored = np.load(out / "index-train.npy")
    assert (stored.dtype, len(stored)) == (SAMPLE, 5), "NumPy itself reads the index"
    path = sorted(out.glob("train-000001.*"))[0]
    content = bytearray(path.read_bytes())
    offset = int(data._rows["offset"][3])
    content[offset + 100] ^= 1
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"{path.name} at byte {offset:,}: damaged, its bytes"):
            data[3]
    assert data[2][0].shape == (3, 16, 16)
    os.truncate(path, offset + 50)
    with pytest.raises(ValueError, match=rf"{path.name} at byte {offset:,}: damaged"):
        data[3]
    path.unlink()
    fresh = pickle.loads(pickle.dumps(Shards("val", out, 16)))
    assert len(fresh) == 2, "another split's shards are not looked at"
    with pytest.raises(OSError, match=path.name):
        Shards("train", out)


def test_what_is_not_used_in_a_folder_of_shards_is_counted(tmp_path: Path) -> None:
    out = prepared(tmp_path)
    assert Shards("train", out, 16).left_out == {}
    for name in ("more.tar.gz", "readme", ".hidden", "old/1.tar", "old/2.tar"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(b"")
    assert Shards("train", out, 16).left_out == {".gz": 1, "files without suffix": 1, "folder old/": 2}


def test_what_is_not_used_in_tars_of_others_is_counted(tmp_path: Path) -> None:
    members = {"1.jpg": jpeg(1, 20, 20), "1.cls": b"0", "1.txt": b"a cat", "2.jpg": jpeg(2, 20, 20), "2.cls": b"1",
               "2.seg.png": b"", "3.cls": b"1"}  # fmt: skip
    tar(tmp_path / "0.tar", list(members.items()))
    for _ in range(2):  # indexed, and by the index
        assert Shards("train", tmp_path, 16).left_out == {".txt": 1, ".seg.png": 1, ".cls": 1}


MILLION = 1_281_167
OPENED = """
import os, sys, time
from leyden.datasets.shards.dataset import Shards
import torch
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1024
Shards("val", sys.argv[1])
memory, began, cpu = resident(), time.perf_counter(), time.process_time()
data = Shards("train", sys.argv[1])
print(time.process_time() - cpu, time.perf_counter() - began, resident() - memory, len(data))
"""


@pytest.mark.slow
def test_opening_a_set_like_imagenet_takes_neither_time_nor_memory(tmp_path: Path) -> None:
    """1,281,167 samples in 313 shards: under 0.5 s and 60 MB, with every offset checked."""
    shards = []
    parts = []
    rows = np.zeros(4096, SAMPLE)
    rows["size"] = 25_000
    rows["offset"] = np.arange(4096) * 26_624 + 512
    for number, start in enumerate(range(0, MILLION, 4096)):
        count = min(4096, MILLION - start)
        rows["label"] = (start + np.arange(4096)) % 1000
        name = f"train-{number:06}.tar"
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 26_624 * count + 10_240)
        shards.append(ShardFile(name=name, bytes=26_624 * count + 10_240, samples=count))
        parts.append(rows[:count].copy())
    whole, part = write_rows(tmp_path / "t.npy", parts), write_rows(tmp_path / "v.npy", parts[:1])
    splits = {
        "train": SplitIndex(file="t.npy", crc32=whole, samples=MILLION, shards=shards),
        "val": SplitIndex(file="v.npy", crc32=part, samples=4096, shards=shards[:1]),
    }
    settings = {"format": "jpeg", "size": 256, "quality": 90, "shard_size": 4096, "source": ""}
    content = {"checksums": True, "raw": False, "classes": 1000, "settings": settings, "splits": splits}
    write_index(tmp_path, ShardSet.model_validate(content))
    done = subprocess.run([sys.executable, "-c", OPENED, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    cpu, wall, megabytes, count = map(float, done.stdout.split())
    print(f"{cpu:.3f} CPU s, {wall:.3f} s, {megabytes:.0f} MB")
    assert count == MILLION
    assert cpu < 0.5
    assert megabytes < 60


# those of others


def test_foreign_tars_are_indexed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tar(tmp_path / "set" / "mine-train-00.tar", samples(0, 1, 2))
    tar(tmp_path / "set" / "mine-train-01.tar", samples(5, 4))
    tar(tmp_path / "set" / "mine-validation-00.tar", samples(7))
    data = Shards("train", tmp_path / "set", 8)
    assert data.splits == ("train", "val")
    assert (data.classes, data.class_names) == (3, None)
    assert [data[i][1] for i in range(5)] == [0, 1, 2, 2, 1]
    assert [data.original(i)[0] for i in range(5)] == [jpeg(n, 12, 10) for n in (0, 1, 2, 5, 4)]
    assert len(Shards("val", tmp_path / "set")) == 1
    monkeypatch.setattr(webdataset, "_samples", None)
    assert len(Shards("train", tmp_path / "set")) == 5, "from the index"
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tar(tmp_path / "set" / "mine-train-01.tar", samples(5, 4, 8))
    assert len(Shards("train", tmp_path / "set")) == 6, "indexed again, as a tar has changed"


def test_forms_of_foreign_tars(tmp_path: Path) -> None:
    """Classes as names in .json, folders, odd members; splits by folders."""
    members = [
        ("a/x.y.png", png(1, 9, 9)),  # its key is a/x, its suffix .y.png: as webdataset has it
        ("a/1.json", json.dumps({"label": "dog", "more": [1]}).encode()),
        ("a/1.PNG", png(1, 9, 9)),
        ("a/1.seg.png.npy", b"\x93NUMPY"),
        ("b/1.webp.txt", b"no image"),
        ("b/2.txt", b"no image"),
        ("./b/3.jpeg", jpeg(3, 9, 9)),
        ("./b/3.json", b'{"label": "cat"}'),
    ]
    tar(tmp_path / "set" / "train" / "0.tar", members[1:])
    tar(tmp_path / "set" / "test" / "0.tar", members[-2:])
    data = Shards("train", tmp_path / "set", 8)
    assert data.class_names == ("cat", "dog")
    assert [data[i][1] for i in range(len(data))] == [1, 0]
    assert Shards("test", tmp_path / "set", 8)[0][1] == 0
    tar(tmp_path / "set" / "train" / "0.tar", members)
    with pytest.raises(ValueError, match=r"train/0\.tar cannot be read as a shard: a/x at byte 512 has no class"):
        Shards("train", tmp_path / "set")


def test_another_key_of_the_class(tmp_path: Path) -> None:
    tar(tmp_path / "set" / "0.tar", [("1.jpg", jpeg(1, 9, 9)), ("1.json", b'{"label": 1, "fine": 7}')])
    assert Shards("train", tmp_path / "set")[0][1] == 1
    assert Shards("train", tmp_path / "set", json_label="fine")[0][1] == 7
    with pytest.raises(ValueError, match=r"no class under dataset\.json_label=coarse"):
        Shards("train", tmp_path / "set", json_label="coarse")


def test_the_index_of_a_folder_that_may_not_be_written_is_kept_in_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar(tmp_path / "set" / "0.tar", samples(0, 1))
    (tmp_path / "set" / "index-train.npy").mkdir()  # root may write everywhere: a folder in the file's place
    assert len(Shards("train", tmp_path / "set")) == 2
    assert not (tmp_path / "set" / INDEX).exists()
    assert len(list(cache.rglob(INDEX))) == 1
    monkeypatch.setattr(webdataset, "_samples", None)
    assert len(Shards("train", tmp_path / "set")) == 2


def indexed(root: Path) -> list[int]:
    data = Shards("train", root, 8)
    return [int(data[i][1]) for i in range(len(data))]


def test_ranks_that_index_at_a_time_do_not_damage_it(tmp_path: Path) -> None:
    for number in range(4):
        tar(tmp_path / "set" / f"{number}.tar", samples(*range(100 * number, 100 * number + 25)))
    expected = [n % 3 for number in range(4) for n in range(100 * number, 100 * number + 25)]
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(indexed, [tmp_path / "set"] * 8, chunksize=1) == [expected] * 8
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == [
        *(f"{number}.tar" for number in range(4)), "index-train.npy", "index.json"
    ]  # fmt: skip


def test_one_in_the_other_is_what_it_was(tmp_path: Path) -> None:
    """Prepared from a folder, then from the shards of others: the same bytes."""
    out = prepared(tmp_path, size=None)
    members = [(f"{i}.{kind}", data) for i in range(2) for kind, data in
               (("jpg", TREE[f"train/cat/{i + 1}.jpg"]), ("cls", b"0"))]  # fmt: skip
    tar(tmp_path / "set" / "0.tar", members)
    ours, theirs = Shards("train", out, SIDE), Shards("train", tmp_path / "set", SIDE)
    assert all(torch.equal(ours[i][0], theirs[i][0]) for i in range(2))
