"""CIFAR's binary files, or class folders of the same images, read into memory."""

import gzip
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray

from .decode import decode, is_image
from .files import Archive, Directory, open_files
from .images_in_memory import ImagesInMemory
from .limits import DEFAULTS, CountedStream, Limits, read_regular
from .listing.class_folders import ClassFolders
from .listing.unread import by_reason

SIDE = 32


@dataclass(frozen=True)
class CifarForm:
    """The official files of one of the two.

    Args:
        name: for messages.
        batches: names of the binary files of each split.
        pickles: names of files of the Python version, which is refused.
        folder, archive, python: the folder and the archive of the binary version, and the folder of the other.
        label_bytes: labels of a record, of which the last is used; the red, green and blue planes follow.
    """

    name: str
    classes: tuple[str, ...]
    batches: Mapping[str, tuple[str, ...]]
    pickles: frozenset[str]
    folder: str
    archive: str
    python: str
    label_bytes: int

    @property
    def record(self) -> int:
        return self.label_bytes + 3 * SIDE * SIDE

    @property
    def expected(self) -> str:
        files = f"expected {self.folder}, {self.archive}, or class folders"
        return f"{files} train/CLASS/IMAGE and test/CLASS/IMAGE in a directory or .zip"

    @property
    def unsafe(self) -> str:
        return (
            f"holds the Python version of {self.name}: pickles, which are unsafe (loading one can run any program); "
            f"use the binary version, {self.archive}"
        )


class CifarImages(ImagesInMemory):
    """Images of 32 x 32 held in memory. A subclass names its `form`, and has `mean` and `std`.

    Attributes:
        images: uint8 [N, 3, 32, 32].
        labels: N classes, numbered as the official files number them.
        left_out: of class folders, number of files that are not read, by reason.
    """

    form: CifarForm
    image_shape: tuple[int, int, int] = (3, SIDE, SIDE)
    splits: tuple[str, ...] = ("train", "test")

    def __init__(self, split: str, root: str | Path, limits: Limits = DEFAULTS) -> None:
        if split not in self.splits:
            raise ValueError(f"{self.form.name} has no split {split!r}, only {' and '.join(self.splits)}")
        images, labels, self.left_out = _load(self.form, Path(root).expanduser(), split, limits)
        self._hold(torch.from_numpy(images), torch.from_numpy(labels))


_Data = tuple[NDArray[np.uint8], NDArray[np.int64], dict[str, int]]
"""Images [N, 3, 32, 32], labels [N], and files that are not read, by reason."""


def _load(form: CifarForm, root: Path, split: str, limits: Limits) -> _Data:
    """Images and labels of any form of `root`."""
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist; {form.expected}")
    if root.is_file() and root.name.endswith((".gz", ".tgz")):
        return _records(form, _from_tar(form, root, form.batches[split], limits))
    if root.is_dir():
        for folder in (root, root / form.folder):
            if any((folder / name).exists() for names in form.batches.values() for name in names):
                return _records(form, _from_folder(folder, form.batches[split], limits))
        if (root / form.archive).is_file():
            return _records(form, _from_tar(form, root / form.archive, form.batches[split], limits))
        if any((folder / name).exists() for folder in (root, root / form.python) for name in form.pickles):
            raise ValueError(f"{root} {form.unsafe}")
    return _from_class_folders(form, open_files(root, is_image, limits), root, split, limits)


def _from_folder(folder: Path, names: Iterable[str], limits: Limits) -> Iterator[tuple[str, bytes]]:
    for name in names:
        path = folder / name
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing")
        yield str(path), read_regular(str(path), limits)


def _from_tar(form: CifarForm, path: Path, names: tuple[str, ...], limits: Limits) -> Iterator[tuple[str, bytes]]:
    """The batches of a compressed tar, read sequentially; nothing is extracted to disk."""
    found: dict[str, bytes] = {}
    try:
        with (
            gzip.open(path) as stream,
            tarfile.open(fileobj=CountedStream(stream, limits.file_bytes, str(path)), mode="r|") as archive,
        ):
            for member in archive:
                limits.check_bytes(member.size, f"{path}/{member.name}")
                name = PurePosixPath(member.name).name
                if name in form.pickles:
                    raise ValueError(f"{path} {form.unsafe}")
                if name in names and (file := archive.extractfile(member)) is not None:
                    found[name] = file.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"{path} is not a tar.gz, or damaged: {error}") from error
    for name in names:
        if name not in found:
            raise FileNotFoundError(f"{path} holds no {name}; {form.expected}")
        yield f"{path}/{name}", found[name]


def _records(form: CifarForm, files: Iterable[tuple[str, bytes]]) -> _Data:
    """Images and labels of binary batches, one after the other."""
    tables: list[NDArray[np.uint8]] = []
    for name, data in files:
        if not data or len(data) % form.record:
            text = f"{len(data)} bytes, not a multiple of {form.record}: cut off, or another format"
            raise ValueError(f"{name} has {text}")
        table = np.frombuffer(data, dtype=np.uint8).reshape(-1, form.record)
        if table[:, form.label_bytes - 1].max() >= len(form.classes):
            raise ValueError(f"{name} has labels above {len(form.classes) - 1}, so it is not {form.name}'s")
        tables.append(table)
    table = np.concatenate(tables)
    images = np.ascontiguousarray(table[:, form.label_bytes :]).reshape(-1, 3, SIDE, SIDE)
    return images, table[:, form.label_bytes - 1].astype(np.int64), {}


def _from_class_folders(form: CifarForm, files: Directory | Archive, root: Path, split: str, limits: Limits) -> _Data:
    members: list[int] = []
    labels: list[int] = []
    found = ClassFolders.of(files.names, root) if len(files.names) else ClassFolders("", {}, {}, {})
    for folder, places in found.splits.get(split, {}).items():
        if folder not in form.classes:
            name = files.names[places[0]]
            raise ValueError(
                f"{root}/{name}: {folder!r} is not a class of {form.name}; for other data use dataset=image_folder"
            )
        members += places
        labels += [form.classes.index(folder)] * len(places)
    if not members:
        raise FileNotFoundError(f"{root} holds no images in {split}/CLASS; {form.expected}")
    images = np.empty((len(members), 3, SIDE, SIDE), dtype=np.uint8)
    for image, member in zip(images, members, strict=True):
        pixels = decode(files.read(member), files.path(member), limits=limits)
        if pixels.shape != (SIDE, SIDE, 3):
            size = f"{pixels.shape[1]} x {pixels.shape[0]}"
            raise ValueError(f"{files.path(member)} has {size} pixels, not {SIDE} x {SIDE}")
        image[:] = pixels.transpose(2, 0, 1)
    return images, np.array(labels, dtype=np.int64), _left_out(files, found)


def _left_out(files: Directory | Archive, found: ClassFolders) -> dict[str, int]:
    left_out = by_reason(files.unread, found, files.top)
    for split in found.folders.keys() - set(CifarImages.splits):
        left_out[f"folder {found.folders[split]}/"] = sum(map(len, found.splits[split].values()))
    return left_out
