"""Checkpoints whose entries are edited."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import torch


def edited(path: Path, change: Callable[[str, bytes], bytes], method: int = zipfile.ZIP_STORED) -> Path:
    """A checkpoint of four weights, its entries changed."""
    torch.save({"format": 1, "model": {"w": torch.zeros(4)}}, path.with_suffix(".whole"))
    with zipfile.ZipFile(path.with_suffix(".whole")) as whole, zipfile.ZipFile(path, "w", method) as archive:
        for entry in whole.infolist():
            archive.writestr(entry.filename, change(entry.filename, whole.read(entry)))
    return path


def reshaped(elements: int, stride: int) -> Callable[[str, bytes], bytes]:
    """Replaces the pickled shape and stride of the weights."""

    def change(name: str, data: bytes) -> bytes:
        if not name.endswith("data.pkl"):
            return data
        numel = data.index(b"K\x04", data.index(b"cpu"))
        shape = data.index(b"K\x04", numel + 2)
        strides = data.index(b"K\x01", shape + 2)
        declared = b"\x8a\x08" + elements.to_bytes(8, "little")
        return data[:shape] + declared + data[shape + 2 : strides] + bytes([0x4B, stride]) + data[strides + 2 :]

    return change
