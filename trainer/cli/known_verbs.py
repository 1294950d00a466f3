"""The first word of a command that is no verb: verbs of other tools, a folder of images, a key without its =."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..base.errors import ConfigError, Problem, join_names, nearest
from ..base.paths import exists
from .verbs import VERBS

_VERBS: Mapping[str, str] = {
    "train": "fit run start launch learn finetune fine_tune classify",
    "eval": "test validate val evaluate evaluation valid validation",
    "predict": "infer inference predictions detect_photos classify_photos",
    "resume": "continue restart",
    "view": "tensorboard board ui show_metrics",
    "status": "ls ps list queue",
    "stop": "kill cancel abort",
    "export": "convert onnx",
    "-m": "sweep tune hpo multirun search",
    "find lr": "lr_find find_lr",
    "find batch_size": "find_batch_size scale_batch_size",
    "--cfg job": "config cfg print_config",
    "--version": "version",
}
"""Leyden's words, and verbs of Lightning, Keras, Ultralytics and others that mean the same."""

_MEANT = {word: ours for ours, words in _VERBS.items() for word in words.split()}
_OTHER_TASKS = ("detect", "segment", "pose", "obb", "track")
_WITH_RUN = ("eval", "resume", "export", "stop", "predict")


def no_verb(words: Sequence[str]) -> ConfigError:
    """The error for a command whose first word is neither a verb nor key=value, and the wrong keys after it."""
    problem = verb_problem(words)
    if not problem.remedy.startswith("leyden "):
        return ConfigError(problem)
    from ..compose.composer import Composer

    composer = Composer()
    typed = [word for word in words[1:] if "=" in word]
    further = composer.with_remedies(ConfigError(*composer.problems_of(typed)), typed).problems
    return ConfigError(Problem(problem.key, problem.text, problem.value, "" if further else problem.remedy), *further)


def verb_problem(words: Sequence[str]) -> Problem:
    """The problem of the first word."""
    first, rest = words[0], list(words[1:])
    if first == "classify" and rest and (rest[0] in VERBS or rest[0] in _MEANT):
        rest[:1] = [] if rest[0] == "train" else _as_ours(rest[0])
        return Problem(first, "is not needed: Leyden classifies", remedy=_command(rest))
    if first in _OTHER_TASKS:
        return Problem(first, "is not here: Leyden classifies images, it neither detects nor segments")
    if first in _MEANT:
        ours = _as_ours(first)
        return Problem(first, f"is leyden {_MEANT[first]} here", remedy=_command([*ours, *rest]))
    joined = "" if nearest(first, VERBS) else _join_override(words)
    if joined:
        return Problem(first, "a key and its value are one word, with = between them", remedy=joined)
    if exists(first):
        from ..compose.known_names import photographs_at

        is_yaml = Path(first).suffix in (".yaml", ".yml")
        remedy = config_file(first) if is_yaml else photographs_at(first)
        return Problem(first, "is neither a verb nor key=value", remedy=remedy)
    close = nearest(first, VERBS)
    text = f"is neither a verb nor key=value{f'; did you mean {close}?' if close else ''}"
    return Problem(
        first,
        f"{text}\nthe verbs are {join_names(list(VERBS))}",
        remedy=f"leyden {close}" if close else "leyden --help",
    )


def config_file(named: str) -> str:
    """The flags that start from a YAML file of the user's."""
    path = Path(named)
    folder = shlex.quote(str(path.parent))
    flags = f"--config-dir {folder} --config-name {shlex.quote(path.stem)}"
    if not exists(named):
        return f"{flags}, with {path.name} in that folder"
    has_defaults = re.search(r"^defaults:", path.read_text(errors="replace")[:100_000], re.MULTILINE)
    return flags if has_defaults else f"{flags}, with the first line `defaults: [train, _self_]` in {path.name}"


def _as_ours(word: str) -> list[str]:
    return [word] if word in VERBS else [] if _MEANT[word] == "train" else _MEANT[word].split()


def _command(words: Sequence[str]) -> str:
    """A command of Leyden's; the newest run where it needs one and names none."""
    needs_run = bool(words) and words[0] in _WITH_RUN and not [word for word in words[1:] if "=" not in word]
    from ..runs.folder import newest_run

    run = [newest_run() or "RUN"] if needs_run else []
    return shlex.join(["leyden", *words[:1], *run, *words[1:]])


def _join_override(words: Sequence[str]) -> str:
    """The override in `lr = 0.1`, `lr: 0.1` or `lr 0.1`; "" if there is none."""
    text = " ".join(words[:3]) if words[1:2] == ["="] else " ".join(words[:2])
    found = re.fullmatch(r"([a-z_][\w.]*)(?: ?[=:] ?| )(\S+)", text)
    if found is None or len(words) < 2:
        return ""
    from ..compose.composer import Composer
    from ..compose.validation import dotted_keys, schema_keys, unknown_key

    key, value, composer = found[1], found[2], Composer()
    values = composer.loader.plain_values(composer.config_name, [])
    if key in {*schema_keys(), *dotted_keys(values)}:
        return f"{key}={value}"
    remedy = unknown_key(key, value, values).remedy
    return remedy if "=" in remedy else ""
