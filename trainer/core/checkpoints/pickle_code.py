"""The pickle of a checkpoint, compared in one pass with what torch.save writes of plain values and tensors."""

import pickletools
import re
from typing import Any

MAX_BYTES, _MAX_OPCODES = 16 << 20, 500_000  # torch.save writes about 30 a tensor; looking at all takes half a second
_CALLED = re.compile(r"collections\.(OrderedDict|Counter)|torch\.Size|torch\._utils\._rebuild_(tensor_v[23]|parameter)")
_NAMED = re.compile(rf"{_CALLED.pattern}|torch\.((storage\.)?[A-Z]\w*Storage|bool|(b?float|u?int|complex)\d+\w*)")
_FILLING = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD"}
_WRITTEN = _FILLING | {
    "PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BINPERSID", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
    "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE",
    "EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}  # fmt: skip


class ContainsCode(ValueError):
    """A pickle asks for a class or function that no checkpoint needs."""


def refuse_code(pickle: bytes, most: int) -> None:
    """
    Raises:
        ContainsCode: it asks for names that torch.save writes of no plain value.
        ValueError, LookupError: other opcodes or keys, or more than `most` values, repeated ones counted each time.
    """
    # of each value: the number of values in it, itself (of a name, whether it may be called), whether it is repeated
    stack, marks, memo, odd = list[list[Any]](), list[int](), dict[Any, list[Any]](), ""
    for number, (opcode, value, _) in enumerate(pickletools.genops(pickle)):
        kind, before = opcode.name, opcode.stack_before
        if number == _MAX_OPCODES:
            raise ValueError(f"its pickle has more than {_MAX_OPCODES:,} opcodes")
        odd = odd or kind * (kind not in _WRITTEN)
        if kind == "MARK":
            marks.append(len(stack))
        elif "PUT" in kind or kind == "MEMOIZE":
            memo[len(memo) if value is None else value] = stack[-1]
        elif "GET" in kind:
            stack.append(memo[value])
            stack[-1][2] = True
        else:
            at = marks.pop() if pickletools.markobject in before else len(stack) - len(before) + (kind in _FILLING)
            taken, stack[at:] = stack[at:], []
            if kind in ("GLOBAL", "INST", "STACK_GLOBAL"):
                name = value.replace(" ", ".", 1) if value else ".".join(str(text) for _, text, _ in taken)
                if not _NAMED.fullmatch(name):
                    raise ContainsCode(name[:200])
                value = _CALLED.fullmatch(name) is not None
            if kind == "REDUCE" and taken[0][1] is not True:
                raise ValueError("its pickle calls what is no function of a checkpoint")
            if kind.startswith("SETITEM") and any(type(key) not in (str, int) for _, key, _ in taken[::2]):
                raise ValueError("a key in it is neither text nor integer")
            if kind in _FILLING and stack[-1][2]:
                raise ValueError("its pickle changes a value that it has repeated")
            if opcode.stack_after:
                stack.append(stack.pop() if kind in _FILLING else [1, value, False])
                stack[-1][0] += sum(inside for inside, _, _ in taken)
                if stack[-1][0] > most:
                    raise ValueError(f"its pickle stands for more than {most:,} values")
    if odd or stack:
        fault = f"the opcode {odd}, which no checkpoint has" if odd else "no end"
        raise ValueError(f"its pickle has {fault}")
