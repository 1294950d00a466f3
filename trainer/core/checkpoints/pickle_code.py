"""Names of classes and functions in a pickle, found from its opcodes: nothing is executed or imported."""

import io
import pickletools
import zipfile
from collections.abc import Iterator
from pathlib import Path

from ..torch_compat import allowed_globals

_MAX_BYTES = 64 << 20


def code_in(path: Path) -> list[str]:
    """Names such as `posix.system` that a checkpoint wants to call, beyond those that tensors need.

    Args:
        path: a zip file as torch.save writes it, or a plain pickle.
    """
    allowed = allowed_globals()
    found = [name for pickle in _pickles(path) for name in _globals(pickle) if name not in allowed]
    return list(dict.fromkeys(found))


def _pickles(path: Path) -> Iterator[bytes]:
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            yield file.read(_MAX_BYTES)
        return
    with zipfile.ZipFile(path) as container:
        for entry in container.infolist():
            if entry.filename.endswith(".pkl") and entry.file_size <= _MAX_BYTES:
                yield container.read(entry)


def _globals(pickle: bytes) -> Iterator[str]:
    """Names in the order of their opcodes, up to the first byte that is no opcode."""
    strings: list[str] = []
    memo: dict[int, str] = {}
    try:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(pickle)):
            if opcode.name in ("GLOBAL", "INST"):
                yield str(argument).replace(" ", ".", 1)
            elif opcode.name == "STACK_GLOBAL":
                yield ".".join(strings[-2:])
            elif "UNICODE" in opcode.name:
                strings.append(str(argument))
            elif opcode.name == "MEMOIZE" or opcode.name.endswith("PUT"):
                memo[len(memo) if argument is None else int(argument)] = strings[-1] if strings else ""
            elif opcode.name.endswith("GET"):
                strings.append(memo.get(int(argument or 0), ""))
    except ValueError:
        return
