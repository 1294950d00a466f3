"""Names of classes and functions in a pickle, found from its opcodes: nothing is executed or imported."""

import io
import pickletools
import zipfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from ..torch_compat import allowed_globals
from .checkpoint_size import refuse_many_entries

_MAX_BYTES = 64 << 20
_MARK = object()
_OTHER = object()
"""A value on the stack that is no text."""


def code_in(path: Path) -> list[str]:
    """Names such as `posix.system` that a checkpoint wants to call, beyond those that tensors need.

    Args:
        path: a zip file as torch.save writes it, or a plain pickle.

    Raises:
        ValueError: a zip file with too many entries.
    """
    allowed = allowed_globals()
    found = [name for pickle in _pickles(path) for name in globals_in(pickle) if name not in allowed]
    return list(dict.fromkeys(found))


def _pickles(path: Path) -> Iterator[bytes]:
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            yield file.read(_MAX_BYTES)
        return
    refuse_many_entries(path)
    with zipfile.ZipFile(path) as container:
        for entry in container.infolist():
            if entry.filename.endswith(".pkl") and entry.file_size <= _MAX_BYTES:
                yield container.read(entry)


def globals_in(pickle: bytes) -> Iterator[str]:
    """Names that a pickle asks for, and those behind it, as torch.save wrote them before it wrote zip files.

    They are in the order of their opcodes, up to the first byte that is none.
    """
    stream = io.BytesIO(pickle)
    while stream.tell() < len(pickle):
        whole = yield from _globals_of_one(stream)
        if not whole:
            return


def _globals_of_one(stream: io.BytesIO) -> Generator[str, None, bool]:
    """Names that the next pickle asks for. Returns whether it is whole."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name in ("GLOBAL", "INST"):
                yield str(argument).replace(" ", ".", 1)
            elif opcode.name == "STACK_GLOBAL":
                module, name = ([_OTHER, _OTHER, *stack])[-2:]
                if isinstance(module, str) and isinstance(name, str):
                    yield f"{module}.{name}"
            _apply(opcode, argument, stack, memo)
    except (ValueError, IndexError):  # no opcode, or none that has what it needs on the stack
        return False
    return True


def _apply(opcode: pickletools.OpcodeInfo, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    """What an opcode does to the stack and to the memo, as far as texts are concerned."""
    name = opcode.name
    if name == "MEMOIZE" or name.endswith("PUT"):
        memo[len(memo) if argument is None else int(argument)] = stack[-1]
    elif name.endswith("GET"):
        stack.append(memo.get(int(argument), _OTHER))
    elif name == "DUP":
        stack.append(stack[-1])
    elif name == "MARK":
        stack.append(_MARK)
    elif isinstance(argument, str) and name in _TEXTS:
        stack.append(argument)
    elif name != "POP":
        _replace(opcode, stack)
    else:
        stack.pop()


_TEXTS = {opcode.name for opcode in pickletools.opcodes if "UNICODE" in opcode.name or "STRING" in opcode.name}


def _replace(opcode: pickletools.OpcodeInfo, stack: list[Any]) -> None:
    """Take from the stack what an opcode takes, and put as many values there as it makes."""
    takes = list(opcode.stack_before)
    if pickletools.markobject in takes:
        while stack.pop() is not _MARK:
            pass
        takes = takes[: takes.index(pickletools.markobject)]
    for _ in takes:
        stack.pop()
    stack.extend(_OTHER for _ in opcode.stack_after)
