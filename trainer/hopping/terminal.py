"""Terminal of a hopping run: a live region at the bottom, and above it the lines of all its processes."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

_STDOUT, _STDERR = 1, 2
_SIZE = (80, 24)
"""Columns and rows, if the terminal does not report them."""


class Terminal:
    """Standard output and error of this process, and of those that it starts from now on, captured until `release`.

    Output of other processes would be written into the live region; through a pipe it arrives line by line.
    """

    def __init__(self) -> None:
        self._original = {number: os.dup(number) for number in (_STDOUT, _STDERR) if os.isatty(number)}
        encoding = {"encoding": sys.stdout.encoding, "errors": "replace"}
        self._console = Console(file=os.fdopen(self._original[_STDOUT], "w", closefd=False, **encoding))
        self._live: Live | None = None
        self._lost = False
        # one line or region at a time: each is drawn relative to the one before
        self._lock = threading.Lock()
        read, write = os.pipe()
        for number in self._original:
            os.dup2(write, number)
        os.close(write)
        self._reader = threading.Thread(target=self._print_lines, args=[read], name="leyden-terminal", daemon=True)
        self._reader.start()

    @classmethod
    def capture(cls) -> "Terminal | None":
        """The terminal, with output captured; None if standard output is none, or one that cannot redraw."""
        can = os.isatty(_STDOUT) and not Console(file=sys.stdout, force_terminal=True).is_dumb_terminal
        return cls() if can else None

    @property
    def size(self) -> os.terminal_size:
        """Present columns and rows."""
        try:
            size = os.get_terminal_size(self._original[_STDOUT])
        except OSError:
            return os.terminal_size(_SIZE)
        return os.terminal_size((size.columns or _SIZE[0], size.lines or _SIZE[1]))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Ignore the loss of the terminal, as of an SSH connection: the run goes on without output."""
        with self._lock:
            try:
                yield
            except OSError:
                self._lost = True

    def draw(self, renderable: Any) -> None:
        """Replace the live region. `renderable`: of rich."""
        if self._lost:
            return
        with self._writing():
            self._console.size = self.size
            if self._live is None:
                self._live = Live(
                    console=self._console, auto_refresh=False, transient=True, redirect_stdout=False,
                    redirect_stderr=False,
                )  # fmt: skip
                self._live.start()
            self._live.update(renderable, refresh=True)

    def clear(self) -> None:
        """Remove the live region."""
        with self._writing():
            if self._live is not None:
                live, self._live = self._live, None
                live.stop()

    def release(self) -> None:
        """Restore standard output and error, after all output of the processes, which have ended, is printed."""
        self.clear()
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in self._original.items():
            os.dup2(original, number)
        # a process that a worker left behind may hold the other end open
        self._reader.join(timeout=5)
        for original in self._original.values():
            os.close(original)

    def _print_lines(self, read: int) -> None:
        with open(read, "rb") as pipe:
            for line in _lines(pipe):
                # read even after the terminal is lost: a full pipe would block the processes that write
                if self._lost:
                    continue
                with self._writing():
                    self._console.print(Text.from_ansi(line), soft_wrap=True)


def _lines(pipe: Any) -> Iterator[str]:
    """Lines of a pipe; of text that overwrites itself (progress bars) only the last state."""
    for line in pipe:
        yield line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]
