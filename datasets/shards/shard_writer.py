"""Writing of one shard: an uncompressed tar of WebDataset's form, or raw pixels one after the other."""

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .encode import Encoded
from .index import SAMPLE, NewFile
from .parts import WrittenShard

_BLOCK = tarfile.BLOCKSIZE


class ShardWriter:
    """A shard that appears at its path when it is renamed.

    Args:
        label_names: of sets of classes, the names or numbers in each, which are written as .json; None: labels are
            classes, which are written as .cls.
    """

    def __init__(self, path: Path, label_names: Sequence[Sequence[str | int]] | None = None) -> None:
        self._label_names = label_names
        self._file = NewFile(path)
        self._tar = path.suffix == ".tar"
        self._rows: list[tuple[int, int, int, int, int, int, int]] = []
        self._left_out: list[str] = []
        self.bytes = 0

    def add(self, index: int, sample: Encoded, name_hash: int = 0) -> None:
        """Append an image, in a tar with its class.

        Args:
            index: its number in the split, by which it is named.
            name_hash: of its name in the source; 0: it has none.
        """
        if self._tar:
            offset = self._member(f"{index:09}.jpg", sample.data, sample.size)
            suffix, label = self._label(sample.label)
            self._member(f"{index:09}{suffix}", label, len(label))
        else:
            offset = self.bytes
            self._write(sample.data, sample.size)
        self._rows.append((offset, sample.size, sample.crc, sample.label, sample.height, sample.width, name_hash))

    def _label(self, label: int) -> tuple[str, bytes]:
        if self._label_names is None:
            return ".cls", str(label).encode()
        return ".json", json.dumps({"labels": self._label_names[label]}).encode()

    def leave_out(self, problem: str) -> None:
        """Note a sample that could not be read."""
        self._left_out.append(problem)

    def end(self) -> WrittenShard:
        """Write what ends a tar. Returns the record of the shard."""
        if self._tar:
            # two empty blocks, and as many as fill a record, as tar itself does
            self._write(bytes(end := 2 * _BLOCK + -(self.bytes + 2 * _BLOCK) % tarfile.RECORDSIZE), end)
        return WrittenShard(np.array(self._rows, SAMPLE), self.bytes, self._left_out)

    def sync(self) -> None:
        self._file.sync()

    def rename(self) -> None:
        self._file.rename()

    def discard(self) -> None:
        self._file.discard()

    def _member(self, name: str, data: object, size: int) -> int:
        """Append a file. Returns the offset of its content."""
        header = tarfile.TarInfo(name)
        header.size = size
        self._write(header.tobuf(tarfile.USTAR_FORMAT), _BLOCK)
        offset = self.bytes
        self._write(data, size)
        self._write(bytes(rest := -size % _BLOCK), rest)
        return offset

    def _write(self, data: object, size: int) -> None:
        self._file.write(data)
        self.bytes += size
