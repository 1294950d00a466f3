"""The pages of the documentation as data: code blocks, the files that they show, the commands."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from folders import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w./]+\.(?:py|yaml))`:\s*$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    """Relative to the root."""
    section: str
    """The newest heading of level two above it."""
    language: str
    text: str
    file: str | None
    """The path that the line above names: "`PATH`:"."""

    @property
    def commands(self) -> list["Command"]:
        """Of a block of shell lines; `a && b` is two."""
        if self.language != "sh":
            return []
        parts = [words(part) for line in self.text.splitlines() for part in line.split(" && ")]
        return [Command(self.page, self.section, tuple(part)) for part in parts if part]


@dataclass(frozen=True)
class Command:
    """A shell command of a page."""

    page: str
    section: str
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """Its first word that is no variable of the environment."""
        return next(word for word in self.words if not re.match(r"[A-Z_]+=", word))

    @property
    def arguments(self) -> list[str]:
        """Without the program, variables of the environment, and where the output goes."""
        begin = self.words.index(self.program) + 1
        end = self.words.index(">") if ">" in self.words else len(self.words)
        return list(self.words[begin:end])

    @property
    def output(self) -> str | None:
        """The file that its output goes to."""
        return self.words[self.words.index(">") + 1] if ">" in self.words else None

    def __str__(self) -> str:
        return " ".join(self.words)


def words(line: str) -> list[str]:
    """A shell line without its comment."""
    return shlex.split(line, comments=True)


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in _BLOCK.finditer(text):
        before = text[: match.start()]
        headings = re.findall(r"^## (.+)$", before, re.MULTILINE)
        file = _FILE.search(before.rstrip("\n"))
        section = headings[-1] if headings else ""
        yield Block(str(page.relative_to(ROOT)), section, match[1], match[2], file[1] if file else None)


BLOCKS = [block for page in PAGES for block in blocks(page)]
