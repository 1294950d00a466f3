"""The terminal of a pipeline: something that changes at its end, and above it the lines of all its processes."""

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
"""Columns and rows of a terminal that does not say."""


class Terminal:
    """Takes standard output and error of this process, and of those that it starts from now on, until `give_back`.

    Others' writing would go into the middle of what stands at the end of the screen; here it comes line by line.
    """

    def __init__(self) -> None:
        self._kept = {number: os.dup(number) for number in (_STDOUT, _STDERR) if os.isatty(number)}
        encoding = {"encoding": sys.stdout.encoding, "errors": "replace"}
        self._console = Console(file=os.fdopen(self._kept[_STDOUT], "w", closefd=False, **encoding))
        self._live: Live | None = None
        self._gone = False
        # one line, or one picture, at a time: each is written relative to the one before
        self._lock = threading.Lock()
        read, write = os.pipe()
        for number in self._kept:
            os.dup2(write, number)
        os.close(write)
        self._reader = threading.Thread(target=self._say_all, args=[read], name="leyden-terminal", daemon=True)
        self._reader.start()

    @classmethod
    def taken(cls) -> "Terminal | None":
        """None where there is no terminal, or one on which nothing can be changed."""
        can = os.isatty(_STDOUT) and not Console(file=sys.stdout, force_terminal=True).is_dumb_terminal
        return cls() if can else None

    @property
    def size(self) -> os.terminal_size:
        """Columns and rows, now."""
        try:
            size = os.get_terminal_size(self._kept[_STDOUT])
        except OSError:
            return os.terminal_size(_SIZE)
        return os.terminal_size((size.columns or _SIZE[0], size.lines or _SIZE[1]))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A terminal that is gone, as when a connection is lost, ends nothing: nothing more is written to it."""
        with self._lock:
            try:
                yield
            except OSError:
                self._gone = True

    def draw(self, picture: Any) -> None:
        """Show it at the end, in place of what was there. `picture`: whatever rich can render."""
        if self._gone:
            return
        with self._writing():
            self._console.size = self.size
            if self._live is None:
                self._live = Live(
                    console=self._console, auto_refresh=False, transient=True, redirect_stdout=False,
                    redirect_stderr=False,
                )  # fmt: skip
                self._live.start()
            self._live.update(picture, refresh=True)

    def clear(self) -> None:
        """Nothing stands at the end any more."""
        with self._writing():
            if self._live is not None:
                live, self._live = self._live, None
                live.stop()

    def give_back(self) -> None:
        """The processes have ended. All that they have written is on the terminal then."""
        self.clear()
        sys.stdout.flush()
        sys.stderr.flush()
        for number, kept in self._kept.items():
            os.dup2(kept, number)
        # whoever still holds the other end is none of ours
        self._reader.join(timeout=5)
        for kept in self._kept.values():
            os.close(kept)

    def _say_all(self, read: int) -> None:
        with open(read, "rb") as pipe:
            for line in _lines(pipe):
                # what nobody can see is taken all the same: a full pipe would stop those who write
                if self._gone:
                    continue
                with self._writing():
                    self._console.print(Text.from_ansi(line), soft_wrap=True)


def _lines(pipe: Any) -> Iterator[str]:
    """Of what overwrites itself only the last."""
    for line in pipe:
        yield line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]
