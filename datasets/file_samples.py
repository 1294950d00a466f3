"""Samples that are a file each, in a directory or an archive."""

import operator
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .decode import Least, decode
from .decoding.headers import looks_whole
from .files import Files
from .image_samples import ImageSamples
from .listing.identity import fingerprint, name_hashes


class FileSamples(ImageSamples):
    """Base of datasets of image files. A subclass sets the attributes.

    Attributes:
        _files: all files of a directory or an archive.
        _members: [N], index of each sample's file.
        _labels: [N], class of each sample, or the number of its set of labels.
        _base: what the names of all samples begin with: the folders around the classes.
    """

    thread_safe: bool = True
    _files: Files
    _members: NDArray[np.int64]
    _labels: NDArray[np.int64]
    _base: str = ""

    def __len__(self) -> int:
        return len(self._members)

    @property
    def labels(self) -> NDArray[np.int64]:
        """[N], class of each sample, or the number of its set of labels."""
        return self._labels

    @property
    def name_hashes(self) -> NDArray[np.uint64]:
        """[N], of each name below the folder of the split."""
        return name_hashes(self._names())

    def original(self, index: int) -> tuple[bytes, int]:
        """The file of a sample as it is, and class, or the number of its set of labels.

        Raises:
            OSError, ValueError: it cannot be read; the message has its name.
        """
        return self._files.read(int(self._members[operator.index(index)])), self._label(index)

    def look_at(self, index: int) -> None:
        """Look at size and header of a sample's file; if anything is odd, decode it.

        Raises:
            OSError, ValueError: as `dataset[index]`, but for damage behind the header.
        """
        member = int(self._members[index])
        if not looks_whole(lambda most: self._files.start(member, most), self.limits):
            self._pixels(index, 1)

    def name(self, index: int) -> str:
        """The path of a sample's file."""
        return self._files.path(int(self._members[index]))

    def fingerprint(self) -> str:
        """Digest of names below the folder of the split, and of classes; in a second line, of sizes."""
        sets = [number for each in self.label_sets or () for number in (len(each), *each)]
        samples = fingerprint(self._names(), self._labels, np.array(sets, np.int64))
        return f"{samples}\n{fingerprint((), self._files.sizes(self._members))}"

    def _names(self) -> Iterator[str]:
        names, above = self._files.names, len(self._base)
        return (names[int(member)][above:] for member in self._members)

    def _pixels(self, index: int, least: Least) -> NDArray[np.uint8]:
        member = int(self._members[index])
        return decode(self._files.read(member), self._files.path(member), least, self.limits, self.exif_orientation)

    def _label(self, index: int) -> int:
        return int(self._labels[index])
