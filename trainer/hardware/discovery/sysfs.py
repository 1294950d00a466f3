"""Readers for files of /sys and /proc, any of which may be missing or unreadable."""

from pathlib import Path


def text_of(file: Path) -> str | None:
    """The stripped text of a file; None if it is missing or unreadable."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def number_of(file: Path) -> int | None:
    """The whole number in a file, or None."""
    text = text_of(file)
    try:
        return int(text) if text else None
    except ValueError:
        return None


def numbers_in(ranges: str) -> list[int]:
    """[0, 1, 2, 8] from "0-2,8", the kernel's list format."""
    found: list[int] = []
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def folders_in(folder: Path) -> list[Path]:
    """Sorted entries of a folder, mlx5_2 before mlx5_10; none if it is missing."""
    try:
        return sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name))
    except OSError:
        return []
