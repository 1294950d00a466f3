"""Number of files in a zip, counted without building its list of files: zipfile takes 600 bytes for each."""

import mmap
import struct
from pathlib import Path

_END = struct.Struct("<4s4xHHIIH")  # signature, disks, entries here and in all, bytes and offset of the list, comment
_END_64 = struct.Struct("<4s20xQQQQ")
_ENTRY = struct.Struct("<4s24xHHH")  # signature, ..., lengths of name, extra field and comment
_ENTRY_BYTES = 46
_LOCATOR_64_BYTES = 20


def zip_entries(path: Path, most: int) -> int:
    """Entries of a zip's list of files, counted up to `most` + 1; 0 if there is no list to be found.

    The number that the zip declares is not used.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = _end_of_list(content)
        if end < 0:
            return 0
        size = _END.unpack_from(content, end)[3]
        locator = end - _LOCATOR_64_BYTES
        at_64 = locator - _END_64.size
        if at_64 >= 0 and content[locator : locator + 4] == b"PK\x06\x07":
            size, end = _END_64.unpack_from(content, at_64)[3], at_64
        if size // _ENTRY_BYTES <= most:
            return size // _ENTRY_BYTES
        return _counted(content, end - size, end, most)


def _end_of_list(content: mmap.mmap) -> int:
    """Offset of the record at the end of a zip, found as zipfile finds it; -1 without one."""
    last = len(content) - _END.size
    if last >= 0 and content[last : last + 4] == b"PK\x05\x06" and content[-2:] == b"\0\0":
        return last
    found = content.rfind(b"PK\x05\x06", max(0, last - 65535))
    return found if found <= last else -1


def _counted(content: mmap.mmap, at: int, end: int, most: int) -> int:
    """Entries between two offsets, at most `most` + 1."""
    count = 0
    while 0 <= at <= end - _ENTRY_BYTES and count <= most:
        signature, *lengths = _ENTRY.unpack_from(content, at)
        if signature != b"PK\x01\x02":
            break
        at += _ENTRY_BYTES + sum(lengths)
        count += 1
    return count
