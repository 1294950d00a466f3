"""Hostile data sets: images, folders and archives."""

import io
import os
import socket
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hostile_entries import CIFAR, IMAGES, Entry, Make
from image_bombs import claims_pixels, encoded, overstated, tiff, understated, with_scans, zeros
from PIL import Image


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, *chunks: bytes) -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + _chunk(b"IEND", b"")


def _zeros(size: int) -> bytes:
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


def _gif(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("P", (4, 4)).save(buffer, "GIF")
    data = bytearray(buffer.getvalue())
    data[6:10] = struct.pack("<HH", width, height)
    at = data.index(b",")
    data[at + 5 : at + 9] = struct.pack("<HH", width, height)
    return bytes(data)


def _avif(side: int) -> bytes:
    data = bytearray(encoded("AVIF"))
    at = data.index(b"ispe") + 8
    data[at : at + 8] = struct.pack(">II", side, side)
    return bytes(data)


def _frames(count: int) -> bytes:
    buffer = io.BytesIO()
    images = [Image.new("L", (8, 8), number % 256) for number in range(count)]
    images[0].save(buffer, "GIF", save_all=True, append_images=images[1:])
    return buffer.getvalue()


_IMAGES: Mapping[str, Callable[[], bytes]] = {
    "a JPEG of 2,000 scans": lambda: with_scans(2000),
    "a JPEG of 4 gigapixels": lambda: claims_pixels(65500),
    "a truncated JPEG": lambda: encoded()[:200],
    "a JPEG of markers": lambda: b"\xff\xd8" + b"\xff\xe1\xff\xff" * 10_000,
    "a JPEG in an EXIF": lambda: b"\xff\xd8\xff\xe1" + (60_000).to_bytes(2, "big") + encoded()[:100],
    "a PNG of 4 gigapixels": lambda: _png(65500, 65500, _chunk(b"IDAT", _zeros(1 << 20))),
    "a PNG of 2^31 columns": lambda: _png((1 << 31) - 1, (1 << 31) - 1),
    "a PNG of 1 GB of text": lambda: _png(8, 8, _chunk(b"zTXt", b"a\0\0" + _zeros(1 << 30)), _chunk(b"IDAT", b"")),
    "a PNG of a 1 GB profile": lambda: _png(8, 8, _chunk(b"iCCP", b"a\0\0" + _zeros(1 << 30)), _chunk(b"IDAT", b"")),
    "a truncated PNG": lambda: encoded("PNG")[:80],
    "a WebP of 268 megapixels": lambda: (
        b"RIFF" + struct.pack("<I", 30) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + b"\xff\x3f\0" * 2
    ),
    "a truncated WebP": lambda: encoded("WEBP")[:60],
    "a GIF of 4 gigapixels": lambda: _gif(65535, 65535),
    "a GIF cut off": lambda: _frames(2000)[:30],
    "a BMP of 4 gigapixels": lambda: (
        b"BM"
        + struct.pack("<IHHI", 100, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 65500, 65500, 1, 24, 0, 0, 1, 1, 0, 0)
    ),
    "an EPS": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(canary) (w) file\n",
    "an SVG": lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "a TIFF": lambda: b"II*\0" + struct.pack("<I", 8) + b"\xff" * 100,
    "a TIFF of 4 gigapixels": lambda: tiff(65500, 65500),
    "a TIFF of one large tile": lambda: tiff(8, 8, {322: 65536, 323: 65536}),
    "a truncated TIFF": lambda: encoded("TIFF")[:2000],
    "an AVIF of 4 gigapixels": lambda: _avif(65500),
    "a truncated AVIF": lambda: encoded("AVIF")[:300],
    "a pickle": lambda: b"cos\nsystem\n(S'touch canary'\ntR.",
    "empty": lambda: b"",
}


def _image(data: Callable[[], bytes]) -> Make:
    """Every image of the data set is the hostile one: whichever comes first."""

    def make(here: Path) -> None:
        content = data()
        for path in (here / "images").rglob("*.png"):
            path.write_bytes(content)

    return make


def _each(place: Callable[[Path], None]) -> Make:
    def make(here: Path) -> None:
        for path in list((here / "images").rglob("*.png")):
            path.unlink()
            place(path)

    return make


def _socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)
    os.chdir(before)


_SPECIAL: Mapping[str, Callable[[Path], None]] = {
    "FIFOs": os.mkfifo,
    "endless devices": lambda path: path.symlink_to("/dev/zero"),
    "a terminal": lambda path: path.symlink_to("/dev/tty"),
    "sockets": _socket,
    "links to nothing": lambda path: path.symlink_to("nowhere"),
    "links to themselves": lambda path: path.symlink_to(path.name),
    "folders": lambda path: path.mkdir(),
}


def _links(here: Path) -> None:
    for level in range(12):
        folder = here / "images" / "train" / f"{level}"
        folder.mkdir()
        for name in "abcd":
            (folder / name).symlink_to(here / "images" / "train" / f"{level + 1}")
    (here / "images" / "train" / "12").mkdir()


def _cycle(here: Path) -> None:
    (here / "images" / "train" / "cat" / "again").symlink_to(here / "images")
    _image(lambda: b"x")(here)


def _deep(here: Path) -> None:
    place = here / "images" / "train" / "cat"
    for _ in range(80):
        place = place / "x"
    place.mkdir(parents=True)


_Members = Mapping[str, bytes]


def _tar(here: Path, *members: tarfile.TarInfo, data: bytes = b"") -> None:
    with tarfile.open(here / "images.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        for member in members:
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data) if member.isreg() else None)


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def _long_header(here: Path) -> None:
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    (here / "images.tar").write_bytes(header.tobuf(tarfile.USTAR_FORMAT) + bytes(512))
    os.truncate(here / "images.tar", 2 << 30)


def _negative(here: Path) -> None:
    block = bytearray(_member("train/cat/1.jpg").tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b"\xff" * 12
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    (here / "images.tar").write_bytes(bytes(block) + bytes(1024))


_TARS: Mapping[str, tuple[Make, str]] = {
    "links": (lambda here: _tar(here, _member("train/cat/1.jpg", tarfile.SYMTYPE, "/etc/passwd")), "images.tar"),
    "hard links": (lambda here: _tar(here, _member("train/cat/1.jpg", tarfile.LNKTYPE, "/etc/passwd")), "images.tar"),
    "devices": (lambda here: _tar(here, _member("train/cat/1.jpg", tarfile.CHRTYPE)), "images.tar"),
    "FIFOs": (lambda here: _tar(here, _member("train/cat/1.jpg", tarfile.FIFOTYPE)), "images.tar"),
    "names outside": (lambda here: _tar(here, _member("../../canary.jpg"), data=b"x"), "images.tar"),
    "absolute names": (lambda here: _tar(here, _member("/tmp/canary.jpg"), data=b"x"), "images.tar"),
    "no image": (lambda here: _tar(here, *map(_member, ("cat/1.jpg", "dog/1.jpg")), data=b"x"), "1.jpg"),
    "right to left": (lambda here: _tar(here, _member("train/c\u202eat/\u202e1.jpg"), data=b"x"), "images.tar"),
    "escapes in a name": (lambda here: _tar(here, _member("train/cat/\x1b]0;x\x07.jpg"), data=b"x"), "images.tar"),
    "a header of a gigabyte": (_long_header, "images.tar"),
    "a negative size": (_negative, "images.tar"),
    "cut off": (lambda here: _void((here / "images.tar").write_bytes(b"train/cat" + bytes(300))), "images.tar"),
    "a FIFO": (lambda here: os.mkfifo(here / "images.tar"), "images.tar"),
}


def _void(_: object) -> None:
    """For makers whose value nobody needs."""


def _zip(here: Path, members: _Members, mode: int = 0) -> None:
    with zipfile.ZipFile(here / "images.zip", "w") as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, data)


def _bomb(write: Callable[[Path, int], None]) -> Make:
    def make(here: Path) -> None:
        write(here / "flat.zip", 1 << 29)
        data = (here / "flat.zip").read_bytes()
        (here / "images.zip").write_bytes(data.replace(b"cat/photo.jpg", b"dog/photo.jpg"))  # one class is refused

    return make


def _million(here: Path) -> None:
    _zip(here, {"a/b.jpg": b"x"})
    data = (here / "images.zip").read_bytes()
    first, end = data.find(b"PK\x01\x02"), data.rfind(b"PK\x05\x06")
    size = (end - first) * 1_000_000
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, size, first, 0)
    (here / "images.zip").write_bytes(data[:first] + data[first:end] * 1_000_000 + tail)


_ZIPS: Mapping[str, tuple[Make, str]] = {
    "512 MB of zeros": (_bomb(zeros), "bomb.jpg"),
    "an understated size": (_bomb(understated), "bomb.jpg"),
    "an overstated size": (_bomb(overstated), "bomb.jpg"),
    "names outside": (lambda here: _zip(here, {"../../canary.jpg": b"x"}), "images.zip"),
    "links": (lambda here: _zip(here, {"train/cat/1.jpg": b"/etc/passwd"}, 0o120777), "images.zip"),
    "no image": (lambda here: _zip(here, {"cat/1.jpg": b"x", "dog/1.jpg": b"x"}), "1.jpg"),
    "a list cut off": (
        lambda here: _void((here / "images.zip").write_bytes(b"PK\x05\x06" + b"\xff" * 18)),
        "images.zip",
    ),
}


def _cifar(change: Callable[[Path], None]) -> Make:
    def make(here: Path) -> None:
        path = here / "cifar" / "data_batch_1.bin"
        path.unlink()
        change(path)

    return make


def _archive_bomb(here: Path) -> None:
    for path in (here / "cifar").iterdir():
        path.unlink()
    header = tarfile.TarInfo("data_batch_1.bin")
    header.size = 1 << 32
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    with open(here / "cifar" / "cifar-10-binary.tar.gz", "wb") as file:
        file.write(packer.compress(header.tobuf(tarfile.GNU_FORMAT)))
        for _ in range(1 << 9):
            file.write(packer.compress(bytes(1 << 20)))
        file.write(packer.flush())


def _pickles(here: Path) -> None:
    for path in (here / "cifar").iterdir():
        path.unlink()
    (here / "cifar" / "data_batch_1").write_bytes(b"cos\nsystem\n(S'touch canary'\ntR.")


def images() -> Iterator[Entry]:
    failed = (1, 2)
    for name, data in _IMAGES.items():
        yield Entry("image", name, IMAGES, ["images/train/"], _image(data), failed, "images")
    for name, place in _SPECIAL.items():
        says = ["images"] if name == "folders" else ["images/train/"]
        yield Entry("folder of images", name, IMAGES, says, _each(place), failed, "images")
    yield Entry("folder of images", "2^24 paths by links", IMAGES, ["dataset.limits.links"], _links, failed, "images")
    yield Entry("folder of images", "a link to itself above", IMAGES, ["images/train/"], _cycle, failed, "images")
    yield Entry("folder of images", "80 deep", IMAGES, ["dataset.limits.depth"], _deep, failed, "images")


def archives() -> Iterator[Entry]:
    for kind, table in (("tar", _TARS), ("zip", _ZIPS)):
        words = (*IMAGES, f"dataset.root=images.{kind}")
        for name, (make, says) in table.items():
            yield Entry(kind, name, words, [says], make, (1, 2), "images")
    words = (*IMAGES, "dataset.root=images.zip", "dataset.limits.members=1000")
    yield Entry("zip", "a million entries", words, ["dataset.limits.members"], _million, (1, 2), "images")


def label_files() -> Iterator[Entry]:
    """CIFAR-10, whose files hold labels and pixels."""
    for name, data in {"a label of 255": b"\xff" * 3073, "cut off": bytes(3000), "empty": b""}.items():
        make = _cifar(lambda path, data=data: _void(path.write_bytes(data)))
        yield Entry("labels", name, CIFAR, ["data_batch_1.bin"], make, (1, 2), "cifar")
    for name, place in _SPECIAL.items():
        if name in ("FIFOs", "endless devices", "links to themselves"):
            yield Entry("labels", name, CIFAR, ["data_batch_1.bin"], _cifar(place), (1, 2), "cifar")
    yield Entry("labels", "a tar.gz of 4 GB", CIFAR, ["cifar-10-binary.tar.gz"], _archive_bomb, (1, 2), "cifar")
    yield Entry("labels", "pickles", CIFAR, ["pickle"], _pickles, (1, 2), "cifar")
