"""dataset=imagenet: the layouts of Kaggle and of image-net.org hold the same samples in the same order of classes."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from shard_examples import jpeg

from leyden.datasets.imagenet import ImageNet
from leyden.datasets.limits import Limits

CLASSES = ("n01440764", "n01443537", "n02124075")
KIT_NUMBERS = {"n01440764": 3, "n01443537": 1, "n02124075": 2}
"""ILSVRC2012_ID, in another order than the names."""
OF_VAL = ("n02124075", "n01440764", "n01443537", "n01440764")
TRAIN = {f"{name}/{name}_{n}.JPEG": jpeg(3 * c + n, 20, 24) for c, name in enumerate(CLASSES) for n in (10, 2)}
VAL = {f"ILSVRC2012_val_{n + 1:08}.JPEG": jpeg(20 + n, 24, 20) for n in range(len(OF_VAL))}


def tar_of(files: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # pyright: ignore[reportCallIssue, reportArgumentType]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def meta(compressed: bool = True) -> bytes:
    """meta.mat by the program that wrote the original's format; more fields and a row for an inner node, as there."""
    fields = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    rows = [(number, name, "a fish, swimming", 0) for name, number in KIT_NUMBERS.items()]
    buffer = io.BytesIO()
    synsets = np.array([*rows, (1001, "n00001740", "entity", 3)], dtype=fields)
    scipy.io.savemat(buffer, {"synsets": synsets.reshape(-1, 1)}, do_compression=compressed)
    return buffer.getvalue()


def kit(compressed: bool = True) -> dict[str, bytes]:
    truth = "".join(f"{KIT_NUMBERS[name]}\n" for name in OF_VAL).encode()
    files = {"ILSVRC2012_validation_ground_truth.txt": truth, "meta.mat": meta(compressed), "meta_det.txt": b"?"}
    return {f"ILSVRC2012_devkit_t12/data/{name}": data for name, data in files.items()}


def solution() -> bytes:
    lines = [f"{name.removesuffix('.JPEG')},{wnid} 1 2 3 4 {wnid} 5 6 7 8 " for name, wnid in zip(VAL, OF_VAL)]  # noqa: B905
    return "\n".join(["ImageId,PredictionString", *reversed(lines)]).encode()  # Kaggle's is not in order either


def kaggle(root: Path) -> Path:
    place = "ILSVRC/Data/CLS-LOC"
    images = {f"{place}/train/{n}": d for n, d in TRAIN.items()} | {f"{place}/val/{n}": d for n, d in VAL.items()}
    return write(root, {**images, f"{place}/test/ILSVRC2012_test_1.JPEG": b"", "LOC_val_solution.csv": solution()})


def tars(root: Path) -> Path:
    """As image-net.org has them: a tar with a tar for each class, a flat tar, and the development kit."""
    inner = {c: {n.split("/")[1]: d for n, d in TRAIN.items() if n.startswith(c)} for c in reversed(CLASSES)}
    train = tar_of({f"{name}.tar": tar_of(files) for name, files in inner.items()})
    return write(root, {"ILSVRC2012_img_train.tar": train, "ILSVRC2012_img_val.tar": tar_of(VAL),
                        "ILSVRC2012_devkit_t12.tar.gz": tar_of(kit(), "w:gz")})  # fmt: skip


def unpacked(root: Path) -> Path:
    images = {f"train/{n}": d for n, d in TRAIN.items()} | {f"val/{n}": d for n, d in VAL.items()}
    return write(root, images | kit(compressed=False))


def sorted_val(root: Path) -> Path:
    images = {f"train/{n}": d for n, d in TRAIN.items()}
    return write(root, images | {f"val/{c}/{n}": d for (n, d), c in zip(VAL.items(), OF_VAL, strict=True)})


@pytest.mark.parametrize("layout", [kaggle, tars, unpacked, sorted_val])
def test_every_layout_has_the_same_samples(tmp_path: Path, layout: Callable[[Path], Path]) -> None:
    root = layout(tmp_path / "imagenet")
    train, val = ImageNet("train", root, 16), ImageNet("val", root, 16)
    assert train.class_names == val.class_names == CLASSES
    assert (train.classes, train.splits) == (3, ("train", "val"))
    found = {Path(train.name(n)).name: train.original(n) for n in range(len(train))}
    assert found == {n.split("/")[1]: (d, CLASSES.index(n.split("/")[0])) for n, d in TRAIN.items()}
    assert {Path(val.name(n)).name: val.original(n) for n in range(len(val))} == {
        n: (d, CLASSES.index(c)) for (n, d), c in zip(VAL.items(), OF_VAL, strict=True)
    }
    image, label = val.evaluation_sample(0)
    assert image.shape == (3, 16, 16)
    assert isinstance(label, int)
    assert not torch.equal(image, train[0][0])


def test_files_that_are_not_read_are_counted(tmp_path: Path) -> None:
    root = write(unpacked(tmp_path / "imagenet"), {f"train/{CLASSES[0]}/{name}": b"" for name in ("a.txt", "b.txt")})
    write(root, {"val/notes.txt": b"", "val/old.db": b"", "test/ILSVRC2012_test_1.JPEG": b""})
    for split in ("train", "val"):
        assert ImageNet(split, root, 16).left_out == {".txt": 3, ".db": 1, "folder test/": 1}


def test_all_that_is_missing_is_one_error(tmp_path: Path) -> None:
    root = kaggle(tmp_path)
    (root / "LOC_val_solution.csv").unlink()
    (root / "ILSVRC/Data/CLS-LOC/train").rename(root / "elsewhere")
    with pytest.raises(ValueError, match=r"lacks the images of train .*; the classes of val .*LOC_val_solution.csv"):
        ImageNet("train", root)


@pytest.mark.parametrize(("broken", "text"), [
    ({"LOC_val_solution.csv": b"ImageId,PredictionString\n"}, "has no class for"),
    ({"LOC_val_solution.csv": b"file,class\n"}, "must begin with the line ImageId"),
    ({"LOC_val_solution.csv": solution().replace(b"n02124075", b"n99999999")}, "train does not have: n9999"),
    ({"ILSVRC/Data/CLS-LOC/train/loose.JPEG": b""}, "not in a class folder"),
])  # fmt: skip
def test_what_does_not_agree_is_named(tmp_path: Path, broken: dict[str, bytes], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ImageNet("val", write(kaggle(tmp_path), broken))


@pytest.mark.parametrize(("name", "data", "text"), [
    ("ILSVRC2012_validation_ground_truth.txt", b"1\n77\n", r"line 2: b'77' is no class"),
    ("ILSVRC2012_validation_ground_truth.txt", b"1\n", "has no class for"),
    ("meta.mat", b"MATLAB" * 100, "meta.mat cannot be read"),
    ("meta.mat", meta()[:-40], "meta.mat cannot be read"),
])  # fmt: skip
def test_a_damaged_kit_is_named(tmp_path: Path, name: str, data: bytes, text: str) -> None:
    root = write(unpacked(tmp_path), {f"ILSVRC2012_devkit_t12/data/{name}": data})
    with pytest.raises(ValueError, match=text):
        ImageNet("val", root)


def test_a_kit_that_grows_when_it_is_unpacked_is_refused(tmp_path: Path) -> None:
    limits = Limits(file_bytes=1 << 16)
    bomb = io.BytesIO()
    scipy.io.savemat(bomb, {"synsets": np.zeros(1 << 16)}, do_compression=True)
    assert len(bomb.getvalue()) < limits.file_bytes
    with pytest.raises(ValueError, match=r"more bytes than dataset.limits.file_bytes"):
        ImageNet(
            "val", write(unpacked(tmp_path), {"ILSVRC2012_devkit_t12/data/meta.mat": bomb.getvalue()}), limits=limits
        )
    root = tars(tmp_path / "tars")
    write(root, {"ILSVRC2012_devkit_t12.tar.gz": tar_of({"zeros": bytes(1 << 20)}, "w:gz")})
    with pytest.raises(ValueError, match=r"more bytes than dataset.limits.file_bytes"):
        ImageNet("val", root, limits=limits)


def test_a_tar_that_leads_out_of_its_own_end_is_damaged(tmp_path: Path) -> None:
    """The header of the last image of a class says that it reaches into the next class."""
    inner = bytearray(tar_of({"a.JPEG": jpeg(1, 20, 20)}))
    header = tarfile.TarInfo("a.JPEG")
    header.size = 1 << 20
    inner[:512] = header.tobuf()
    train = tar_of({f"{CLASSES[0]}.tar": bytes(inner), f"{CLASSES[1]}.tar": bytes(2 << 20)})
    with pytest.raises(ValueError, match="ends after the tar that it is in"):
        ImageNet("train", write(tars(tmp_path), {"ILSVRC2012_img_train.tar": train}))
