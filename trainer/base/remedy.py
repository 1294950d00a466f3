"""Remedies of an error as text: what can be typed as it stands, and what leaves something to the user."""

import os
import re
import shlex

_OVERRIDE = re.compile(r"[+~]?[\w.@/]+=\S+")
_PLACEHOLDER = re.compile(
    r"(?<!mode=)\b(VALUE|NAME|TAG|PATH|FOLDER|DIR|RUN|SWEEP|TRIAL|FILE|PHOTOS|SHARDS|KEY|HOST|IMAGE|DAY/TIME|METRIC|MODE"
    r"|OWNER|REGISTRY|CLAIM|WHAT)\b|\.\.\.|(?:=|\s)(?:N|CLASS)$"
)
_COMMANDS = ("leyden", "pip", "kill", "scancel", "export", "unset", "ulimit", "git", "rm", "mkdir")
_OF_A_SENTENCE = re.compile(r"[,;:`](\s|$)|\s(or|then|and|the|of|from|with|to|its|by|which)\s")


def alternatives(remedy: str) -> list[list[str]]:
    """The overrides of each alternative that a remedy names; empty if it is anything else."""
    ways = [way.split() for way in re.split(r",? or ", remedy)]
    return ways if all(way and all(_OVERRIDE.fullmatch(word) for word in way) for way in ways) else []


def leaves_open(remedy: str) -> bool:
    """Whether the user must fill in a value: dataset.root=PATH."""
    return _PLACEHOLDER.search(remedy) is not None


def remedy_lines(remedy: str) -> list[str]:
    """Lines of an error: `try:` for each alternative that can be pasted, else `needs:`."""
    if remedy.startswith("leave ") or not remedy:
        return [remedy] if remedy else []
    ways = re.split(r",? or ", remedy)
    return [f"try: {way}" for way in ways] if all(map(_can_be_pasted, ways)) else [f"needs: {remedy}"]


def _can_be_pasted(remedy: str) -> bool:
    """Whether it is overrides, flags, a command of a shell or a path, and complete."""
    try:
        words = shlex.split(remedy)
    except ValueError:
        return False
    if not words or leaves_open(remedy):
        return False
    if words[0] in _COMMANDS or words[0].startswith("-"):
        return _OF_A_SENTENCE.search(remedy) is None
    is_line_of_yaml = re.fullmatch(r"\w+: \S+", remedy) is not None
    is_path = len(words) == 1 and ("/" in remedy or os.path.exists(remedy))
    return is_line_of_yaml or is_path or all(_OVERRIDE.fullmatch(word.replace(" ", "")) for word in words)
