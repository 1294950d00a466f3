"""Images read from shards."""

import operator
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..decode import Least, decode
from ..image_samples import SPLITS, ImageSamples
from ..limits import DEFAULTS, Limits
from .index import UNFINISHED, ShardSet, read_index, read_rows
from .shard_files import ShardFiles
from .staging import staged
from .unused import unused_files
from .webdataset import indexed_in_place


class _Place(NamedTuple):
    """A sample by its name, which costs as much as reading one, and is needed for errors alone."""

    shards: "Shards"
    sample: int

    def __str__(self) -> str:
        return self.shards.name(self.sample)


class Shards(ImageSamples):
    """Images in shards that `leyden prepare` has written, or in uncompressed tars of WebDataset's form.

    Of the latter the image (by `SUFFIXES`) and the class (.cls, or a key of .json) of each sample are used; nothing
    else is read. They are indexed when they are first opened. The split is the word train,
    val or test in a tar's name or folder; all others are training data. Samples are numbered in the order of the tars.

    Args:
        split: "train", "val" or "test".
        root: folder of the shards; `~` is expanded.
        image_size, limits, resize, crop, scaled_decoding, exif_orientation: as `ImageSamples`.
        json_label: key of the class in .json, or of a list of classes.
        stage: "node": shards are copied to a disk of the node first, once for all its processes (`staging.staged`).
        stage_dir: folder of that disk; None: that of temporary files (TMPDIR, /tmp).

    Attributes:
        class_names: None if the tars hold numbers.
        splits: the existing ones.
        left_out: number of files that are not used, by reason.

    Raises:
        FileNotFoundError: there is nothing at `root`, or a shard is missing.
        ValueError: no shards, no such split, or an index that does not agree with its files.
    """

    RESUMABLE = ("root", "stage", "stage_dir")
    thread_safe: bool = True

    def __init__(
        self,
        split: str,
        root: str | Path,
        image_size: int = 224,
        limits: Limits = DEFAULTS,
        resize: int | Literal["auto"] | None = None,
        crop: int | None = None,
        json_label: str = "label",
        stage: Literal["none", "node"] = "none",
        stage_dir: str | Path | None = None,
        scaled_decoding: bool = False,
        exif_orientation: bool = True,
    ) -> None:
        super().__init__(image_size, limits, resize, crop, scaled_decoding, exif_orientation)
        if stage not in ("none", "node"):
            raise ValueError(f"dataset.stage={stage} must be none or node")
        self.root = Path(root).expanduser()
        folder, found = _opened(self.root, json_label, limits)
        self.splits: tuple[str, ...] = tuple(name for name in SPLITS if name in found.splits)
        index = next((each for name, each in found.splits.items() if name == split), None)
        if index is None:
            raise ValueError(f"{self.root} has no split {split!r}, only {', '.join(self.splits)}")
        limits.check_members(index.samples, str(self.root))
        self.classes = found.classes
        self.label_sets = found.label_sets
        self.class_names: tuple[str, ...] | None = None if found.class_names is None else tuple(found.class_names)
        if found.mean and found.std:
            self.mean, self.std = tuple(found.mean), tuple(found.std)
        self._raw, self._checksums = found.raw, found.checksums
        self.shares_pixels = found.raw
        place = self.root if stage == "none" else staged(self.root, found, stage_dir)
        self.left_out = unused_files(self.root, found) if split == "train" else {}
        self._rows_file = (folder, place, found, index)
        self._rows = read_rows(*self._rows_file)
        self._ends = np.cumsum([shard.samples for shard in index.shards])
        self._files = ShardFiles([place / shard.name for shard in index.shards])
        self._verified = np.zeros(len(self._rows), bool)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def labels(self) -> NDArray[np.int64]:
        """[N], class of each sample, or the number of its set of labels."""
        return self._rows["label"].astype(np.int64)

    @property
    def name_hashes(self) -> NDArray[np.uint64] | None:
        """[N], of each sample's name in the source; None: that has no names."""
        return self._rows["name"].copy() if self._rows["name"].any() else None

    @property
    def file_ends(self) -> Sequence[int]:
        """Samples up to the end of each shard."""
        return self._ends.tolist()

    def fingerprint(self) -> str:
        """Digest of the index: names and sizes of the shards, and of every sample its place, size and class."""
        _, _, found, index = self._rows_file
        shards = [(shard.name, shard.bytes, shard.samples) for shard in index.shards]
        return f"{index.crc32:08x} {shards} {found.label_sets}"

    def read_ahead(self, first: int, end: int) -> None:
        """Ask the system for the samples [first, end), which soon are read: each shard's as one piece."""
        while first < end:
            shard = self._shard(first)
            last = min(end, int(self._ends[shard])) - 1
            offset = int(self._rows["offset"][first])
            size = int(self._rows["offset"][last]) + int(self._rows["size"][last]) - offset
            self._files.read_ahead(shard, offset, size)
            first = last + 1

    def original(self, index: int) -> tuple[bytes | NDArray[np.uint8], int]:
        """The file of a sample as it is, or its pixels (uint8 [height, width, 3]), and class or label set.

        Raises:
            OSError, ValueError: it cannot be read; the message has its shard and offset.
        """
        index = self._number(index)
        return (self._stored_pixels(index) if self._raw else self._file(index)), self._label(index)

    def name(self, index: int) -> str:
        """Shard and offset of a sample."""
        index = self._number(index)
        return f"{self._files.paths[self._shard(index)]} at byte {int(self._rows['offset'][index]):,}"

    def _pixels(self, index: int, least: Least) -> NDArray[np.uint8]:
        index = self._number(index)
        if self._raw:
            return self._stored_pixels(index)
        return decode(self._file(index), _Place(self, index), least, self.limits, self.exif_orientation)

    def _label(self, index: int) -> int:
        return int(self._rows["label"][index])

    def _number(self, index: int) -> int:
        index = operator.index(index)
        if not -len(self._rows) <= index < len(self._rows):
            raise IndexError(index)
        return index % len(self._rows)

    def _shard(self, index: int) -> int:
        return int(self._ends.searchsorted(index, side="right"))

    def _file(self, index: int) -> bytes:
        offset, size, crc, *_ = self._rows[index].item()
        self.limits.check_bytes(size, _Place(self, index))
        data = self._files.read(self._shard(index), offset, size)
        self._verify(index, len(data) == size and self._is_intact(index, data, crc))
        return data

    def _stored_pixels(self, index: int) -> NDArray[np.uint8]:
        offset, size, crc, _, height, width, _ = self._rows[index].item()
        self.limits.check_bytes(size, _Place(self, index))
        if height * width > self.limits.pixels:
            text = f"{width} x {height} pixels are more than dataset.limits.pixels={self.limits.pixels}"
            raise ValueError(f"{self.name(index)}: {text}")
        pixels = self._files.pixels(self._shard(index), offset, (height, width, 3))
        self._verify(index, pixels is not None and self._is_intact(index, pixels, crc))
        assert pixels is not None
        return pixels

    def _is_intact(self, index: int, data: bytes | NDArray[np.uint8], crc: int) -> bool:
        """Whether the checksum is right. It is computed when a process reads an image for the first time."""
        if self._verified[index] or not self._checksums:
            return True
        self._verified[index] = zlib.crc32(data if isinstance(data, bytes) else data.data) == crc
        return bool(self._verified[index])

    def _verify(self, index: int, intact: bool) -> None:
        if not intact:
            raise ValueError(f"{self.name(index)}: damaged, its bytes are not those of the index")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None, "_verified": len(self._verified)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._rows = read_rows(*self._rows_file)
        self._verified = np.zeros(state["_verified"], bool)


def _opened(root: Path, json_label: str, limits: Limits) -> tuple[Path, ShardSet]:
    """The index of a folder of shards, and the folder that holds it."""
    if not root.is_dir():
        kind = "is not a folder" if root.exists() else "does not exist"
        raise FileNotFoundError(f"{root} {kind}; expected shards of leyden prepare, or WebDataset's .tar files")
    found = read_index(root)
    if found is not None and found.settings is not None:
        return root, found
    if (root / UNFINISHED).is_dir():
        raise ValueError(f"{root} is not finished: run the same leyden prepare again, which goes on where it ended")
    return indexed_in_place(root, found, json_label, limits)
