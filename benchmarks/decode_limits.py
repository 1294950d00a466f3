"""Cost of `dataset.limits` in decoding: scans counted, size compared, against the same decoder called without that.

    python benchmarks/decode_limits.py DATA            # about a minute

DATA holds imagenet-sample.zip and cifar10.zip. Blocks of the same images, checked and unchecked in turn; a rate is
the median of the blocks by CPU time, the cost the median of the ratios of neighbouring blocks.
"""

import argparse
import random
import statistics
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time

import simplejpeg

from leyden.datasets import decode as decoding
from leyden.datasets.decode import decode
from leyden.datasets.limits import DEFAULTS

Decode = Callable[[bytes, str, int], object]
CASES = (("imagenet-sample.zip", "ImageNet photographs, shrunk to 448 pixels or more", 448, 300, 1),
         ("imagenet-sample.zip", "ImageNet photographs, at full size", 0, 300, 1),
         ("cifar10.zip", "CIFAR-10 (JPEG), 32 x 32 pixels", 0, 1000, 4))  # fmt: skip
"""File, name, least side, images, passes over them in a block."""


def unchecked(data: bytes, name: str, least: int) -> object:
    """`decode` of a JPEG as it would be without limits."""
    try:
        if not data.startswith(b"\xff\xd8\xff"):
            raise ValueError("no JPEG")
        rows, columns, *_ = simplejpeg.decode_jpeg_header(data)
        height, width = int(rows), int(columns)
        least = least if least and min(height, width) >= 2 * least else 0
        return simplejpeg.decode_jpeg(data, "RGB", min_height=least, min_width=least)
    except Exception as error:
        raise ValueError(f"{name}: {error}") from error


def checked(data: bytes, name: str, least: int) -> object:
    return decode(data, name, least, DEFAULTS)


def images(file: Path, count: int) -> list[bytes]:
    """JPEGs of three colours from all over the archive: those that simplejpeg itself decodes."""
    with zipfile.ZipFile(file) as archive:
        names = sorted(name for name in archive.namelist() if not name.endswith("/"))
        found = [archive.read(name) for name in random.Random(0).sample(names, min(len(names), 2 * count))]
    return [data for data in found if data.startswith(b"\xff\xd8\xff") and _decodes(data)][:count]


def _decodes(data: bytes) -> bool:
    try:
        return decoding._decode_jpeg(data, 0, DEFAULTS) is not None
    except ValueError:
        return False


def seconds(decoder: Decode, data: Sequence[bytes], least: int, passes: int) -> float:
    began = process_time()
    for _ in range(passes):
        for each in data:
            decoder(each, "image", least)
    return process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    print(f"{'':54}{'without':>10}{'with':>10}{'cost':>8}")
    for file, name, least, count, passes in CASES:
        data = images(given.data / file, count)
        taken: dict[Decode, list[float]] = {checked: [], unchecked: []}
        for number in range(given.rounds + 1):
            for decoder in random.sample(list(taken), 2):
                spent = seconds(decoder, data, least, passes)
                taken[decoder] += [spent] if number else []  # the first round warms up
        rates = {decoder: passes * len(data) / statistics.median(times) for decoder, times in taken.items()}
        cost = statistics.median(a / b for a, b in zip(taken[checked], taken[unchecked], strict=True)) - 1
        print(f"{name:54}{rates[unchecked]:10.0f}{rates[checked]:10.0f}{cost:8.1%}")


if __name__ == "__main__":
    main()
