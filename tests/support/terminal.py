"""A terminal that a command runs on, and its screen as a person would see it."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from types import TracebackType

from runs import PATIENCE_S

_CODE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


class Screen:
    """The lines of a screen, and those that have scrolled off it.

    It interprets the control codes that rich writes: up, erase a line, show and hide the cursor, colours.

    Raises:
        AssertionError: another code comes.
    """

    def __init__(self, columns: int, rows: int):
        self.columns, self.rows = columns, rows
        self.scrolled_off: list[str] = []
        self._lines = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0

    @property
    def lines(self) -> list[str]:
        return ["".join(line).rstrip() for line in self._lines]

    @property
    def text(self) -> str:
        """All lines, scrolled back to the first."""
        return "\n".join([*self.scrolled_off, *self.lines]).rstrip()

    def write(self, text: str) -> None:
        """Write a text that ends with no part of a control code."""
        while text:
            if match := _CODE.match(text):
                self._obey(match[2], match[1])
                text = text[match.end() :]
            else:
                self._put(text[0])
                text = text[1:]

    def _put(self, character: str) -> None:
        match character:
            case "\r":
                self._column = 0
            case "\n":
                self._down()
            case _:
                assert character.isprintable(), repr(character)
                if self._column == self.columns:
                    self._column = 0
                    self._down()
                self._lines[self._row][self._column] = character
                self._column += 1

    def _down(self) -> None:
        if self._row < self.rows - 1:
            self._row += 1
            return
        self.scrolled_off.append("".join(self._lines.pop(0)).rstrip())
        self._lines.append([" "] * self.columns)

    def _obey(self, code: str, parameters: str) -> None:
        match code:
            case "A":
                self._row = max(0, self._row - int(parameters or 1))
            case "K" if parameters == "2":
                self._lines[self._row] = [" "] * self.columns
            case "h" | "l" if parameters == "?25":
                pass
            case "m":
                pass
            case _:
                raise AssertionError(f"control code {parameters}{code}")


def _take_terminal() -> None:
    """Make the terminal the command's controlling one, so that Ctrl-C reaches it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A command on a terminal of its own; ends with the block."""

    def __init__(self, command: Sequence[str], columns: int = 80, rows: int = 24, **environment: str):
        self.screen = Screen(columns, rows)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=_take_terminal,
            env={**inherited, "TERM": "xterm", **environment},
        )  # fmt: skip
        os.close(theirs)
        self._left = b""
        self.raw = ""
        """Everything that was written so far."""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        """As if on the keyboard."""
        os.write(self._ours, text.encode())

    def read(self, seconds: float) -> bool:
        """Read output of the next seconds. Returns False at its end."""
        if not wait([self._ours], seconds):
            return True
        try:
            read = os.read(self._ours, 65536)
        except OSError:  # the command has closed its terminal
            read = b""
        if not read:
            return False
        self._take(read)
        return True

    def _take(self, read: bytes) -> None:
        whole = self._left + read
        # neither half a character nor half a control code
        cut = len(whole)
        escape = whole.rfind(b"\x1b")
        if escape >= 0 and not _CODE.match(whole[escape:].decode(errors="ignore")):
            cut = escape
        text = whole[:cut].decode(errors="ignore")
        cut = len(text.encode())
        self._left = whole[cut:]
        self.raw += text
        self.screen.write(text)

    def finish(self, seconds: float = 120.0) -> int:
        """Read to the end. Returns the exit code."""
        end = time.monotonic() + seconds
        while self.read(0.1):
            assert time.monotonic() < end, self.screen.text
        return self.process.wait(PATIENCE_S)
