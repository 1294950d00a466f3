"""`leyden help TOPIC`: a verb, a group, one of its choices, or a key, from the YAML files and their comments."""

import re
from collections.abc import Iterable
from typing import Any

from ..base.errors import ConfigError, join_names, nearest, refuse, shorten_value
from ..base.paths import shorten_path
from ..compose.reference.allowed_values import allowed_values
from ..compose.reference.yaml_comments import Commented
from ..compose.reference.yaml_library import Library, ReferenceEntry
from ..compose.rules.resumable_keys import may_change
from .help import columns, verb_text
from .verbs import VERBS


def topic_page(topic: str, config_dir: str | None = None) -> str:
    """The page of a topic, for a terminal. `config_dir`: the user's folder of YAML files.

    Raises:
        ConfigError: unknown topic.
    """
    library = Library(config_dir)
    name, _, choice = re.sub(r"^data(?=[=.]|$)", "dataset", topic.lstrip("+~")).partition("=")
    if name in library.groups and choice:
        return _choice_page(library, name, choice.removesuffix(".yaml"))
    pages = [verb_text(name)] if name in VERBS and not choice else []
    pages += [_group_page(library, name)] if name in library.groups else _key_page(library, name)
    if not pages:
        raise _unknown(library, topic, name)
    return "\n\n".join(pages)


def _choice_page(library: Library, group: str, choice: str) -> str:
    path = library.path(f"{group}/{choice}")
    if path is None:
        close = nearest(choice, library.groups[group])
        meant = f"; did you mean {close}?" if close else ""
        text = f"there is no such choice{meant}\n{group} can be {join_names(library.groups[group])}"
        raise refuse(group, text, choice, f"leyden help {group}={close}" if close else f"leyden help {group}")
    head = [f"  {line}" for line in library.file(f"{group}/{choice}").head]
    target = library.target(group, choice)
    entries = library.entries(group, choice)
    own = {entry.name for entry in entries}
    return "\n".join(
        [
            f"{group}={choice}",
            *head,
            f"  file: {shorten_path(path)}",
            *([f"  class: {target}"] if target else []),
            *_with_title("Keys", entries),
            *_with_title(
                f"Keys of any {group}", [entry for entry in library.root_entries(group) if entry.name not in own]
            ),
        ]
    )


def _group_page(library: Library, group: str) -> str:
    heads = {f"{group}={name}": _summary(library.file(f"{group}/{name}")) for name in library.groups[group]}
    default = library.default_choices().get(group) or "none"
    other = "another is named or the dataset has one" if group == "augment" else "another is named"
    title = f"{group}: {default} unless {other}; leyden help {group}=NAME has its keys"
    return "\n".join([title, *columns(heads), *_with_title(f"Keys of any {group}", library.root_entries(group))])


def _summary(file: Commented) -> str:
    """The first sentence of a file's head, without commands: up to the first full stop at the end of a line."""
    said: list[str] = []
    for line in file.head:
        if not line.startswith("leyden "):
            said.append(line)
        if said and said[-1].endswith((".", ":", ")")):
            break
    return " ".join(said)


def _key_page(library: Library, name: str) -> list[str]:
    """A key in the root file and in each choice that has it, or the keys below it; [] if there is none."""
    entries = list(library.every_entry())
    there = [entry for entry in entries if entry.name == name]
    declared = {entry.name for entry in entries if not entry.choice}
    below = [entry for entry in entries if entry.name.startswith(f"{name}.")]
    below = [entry for entry in below if not entry.choice or entry.name not in declared]
    allowed = allowed_values(name) if there else ""
    lines = [name, *([f"  {allowed}"] if allowed and " | " not in allowed else [])]
    if there:
        lines.append(f"  leyden resume {'may' if _may_change(library, there) else 'may not'} change it")
    comments: dict[str, list[str]] = {}
    for entry in there:
        comments.setdefault(_with_choices(entry), []).append(f"{entry.choice or 'default'}: {_value(entry.value)}")
    for comment, values in comments.items():
        lines += [*(f"  {value}" for value in values), *columns({"": comment})]
    return ["\n".join([*lines, *_rows(below)])] if there or below else []


def _may_change(library: Library, entries: Iterable[ReferenceEntry]) -> bool:
    """Whether a resumed run may change a key, by the schema or by the class of one of its choices."""
    for entry in entries:
        group, _, choice = entry.choice.partition("=")
        values: dict[str, Any] = {}
        for name, key in library.keys(group, choice).items() if choice else ():
            if name.endswith("._target_"):
                node = values
                for part in name.split(".")[:-1]:
                    node = node.setdefault(part, {})
                node["_target_"] = key.value
        if may_change(entry.name, values):
            return True
    return False


def _with_title(title: str, entries: list[ReferenceEntry]) -> list[str]:
    return ["", title, *_rows(entries)] if entries else []


def _rows(entries: Iterable[ReferenceEntry]) -> list[str]:
    return columns({f"{entry.name}={_value(entry.value)}": _with_choices(entry) for entry in entries})


def _with_choices(entry: ReferenceEntry) -> str:
    """The comment, and the key's choices unless the comment lists them."""
    allowed = allowed_values(entry.name)
    missing = " | " in allowed and " | " not in entry.comment and not isinstance(entry.value, bool)
    return "; ".join(filter(None, (entry.comment, allowed if missing else "")))


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("_target_", "{}"))
    return "[" + ",".join(map(_value, value)) + "]" if isinstance(value, list) else shorten_value(value)


def _unknown(library: Library, topic: str, name: str) -> ConfigError:
    keys = [entry.name for entry in library.every_entry()]
    by_last = {key.rpartition(".")[2]: key for key in reversed(keys)}
    last = name.rpartition(".")[2]
    choices = {choice: f"{group}={choice}" for group, names in library.groups.items() for choice in names}
    close = by_last.get(name) or choices.get(name) or nearest(name, [*VERBS, *library.groups, *keys])
    close = close or by_last.get(nearest(last, by_last) or "")
    text = "there is no verb, group or key of this name" + (f"; did you mean {close}?" if close else "")
    return refuse(topic, text, remedy=f"leyden help {close}" if close else "leyden help")
