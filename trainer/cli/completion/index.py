"""Index of what can be typed after `leyden`: verbs, flags, groups, choices, keys. One entry a line.

    S VERB WORD         a word that the verb takes: lr, batch_size
    P VERB              it takes paths
    O VERB              it takes groups and keys
    F VERB FLAG         its flag; VERB is * for the flags of all
    A FLAG KIND         the flag takes a value: dir, file, text, or one of several, a|b|c
    G GROUP             a config group
    C GROUP CHOICE
    K KEY [bool]        a key of the config, with dots
    N VERB KEY          a key of the verb's own

Written when the wheel is built: `python -m leyden.trainer.cli.completion.index FILE`. Imports neither Hydra nor torch.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ...base.atomic_file import write_atomically
from ...compose.reference.yaml_library import Library
from ..verbs import HELP, VERBS, VERSION, Flag, Verb

FILE = Path(__file__).with_name("index.txt")
"""The index in a wheel; an editable install has none."""
_KINDS = {"DIR": "dir", "FILE": "file", "FILE.yaml": "file"}
"""Kinds of values by the placeholder of a flag's value."""
_PATHS = re.compile("RUN|SWEEP|FOLDER|DIR|PHOTOS")


def lines() -> Iterator[str]:
    """The lines of the index; those that the choice of a verb needs are the first."""
    valued: dict[str, str] = {}
    for name, verb in VERBS.items():
        yield from _verb(name, verb)
        for flag in verb.flags:
            yield from (f"F {name} {typed}" for typed in flag.names)
            valued |= {typed: _kind(flag) for typed in flag.names if flag.value.strip("[]") == flag.value != ""}
    yield from (f"F * {typed}" for flag in (HELP, VERSION) for typed in flag.names)
    yield from (f"A {typed} {kind}" for typed, kind in valued.items())
    library = Library()
    for group, choices in library.groups.items():
        yield f"G {group}"
        yield from (f"C {group} {choice}" for choice in choices)
    keys = {entry.name: entry.value for entry in library.every_entry()}
    for key in sorted(keys):
        yield f"K {key} bool" if isinstance(keys[key], bool) else f"K {key}"
    for name, verb in VERBS.items():
        own = [key for file in verb.keys for key in library.file(file).keys if key != "_target_"]
        yield from (f"N {name} {key}" for key in own)


def _verb(name: str, verb: Verb) -> Iterator[str]:
    yield f"V {name}"
    first = verb.words.partition(" ")[0]
    if re.fullmatch(r"[a-z_|]+", first):
        yield from (f"S {name} {word}" for word in first.split("|"))
    if _PATHS.search(verb.words):
        yield f"P {name}"
    if "=" in verb.words or "KEY" in verb.words:
        yield f"O {name}"


def _kind(flag: Flag) -> str:
    if flag.value in _KINDS:
        return _KINDS[flag.value]
    if flag.names[0] == "--out":
        return "file"
    return flag.value if "|" in flag.value else "text"


def write(file: Path) -> None:
    write_atomically(file, "\n".join(lines()) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
