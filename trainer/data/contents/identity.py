"""Whether a run's data is still what it was trained on: fingerprints of the content, and what has changed."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ...base.errors import Problem
from ...base.paths import shorten_path
from ...base.untrusted_file import DamagedFile, read_json
from ...core import declarations
from ...runs.frozen import changes_of
from ..splits import Splits, Subset

DATA_FILE = "data.json"
ACCEPTED = "dataset.changed"
_MOST = 6
"""Changes that are named."""


def fingerprints(splits: Splits) -> dict[str, str]:
    """Fingerprint of each split that the dataset has: number, classes and their names, and what the dataset adds."""
    own = {"train": splits.whole, "val": splits.val, "test": splits.test}
    return {name: _fingerprint(data) for name, data in own.items() if not (data is None or isinstance(data, Subset))}


def _fingerprint(data: Any) -> str:
    declared = declarations.of_dataset(data)
    names = declared.class_names
    known = [len(data), data.classes, None if names is None else list(map(str, names))]
    more = "" if declared.fingerprint is None else declared.fingerprint()
    samples, _, sizes = more.partition("\n")
    return f"{_hash_text(f'{json.dumps(known)} {samples}')} {_hash_text(sizes)}"


def digest_of(found: Mapping[str, Any]) -> str | None:
    """One word for what the order of the samples depends on, which sizes of files do not change.

    None of a LightningDataModule, which may divide its data by workers.
    """
    if "workers" in found:
        return None
    samples = {split: both.split()[0] for split, both in found["fingerprint"].items()}
    by_name = [found["held_out_by"]] if "held_out_by" in found else []
    return _hash_text(json.dumps([found["classes"], found["splits"], samples, *by_name], sort_keys=True, default=str))


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_record(folder: Path) -> dict[str, Any]:
    """What the newest session has found; {}: there is none, or no whole record of it."""
    try:
        before = read_json(folder / DATA_FILE)
        list(changes({}, before))
    except (OSError, DamagedFile, AttributeError, KeyError, TypeError):
        return {}
    return before if isinstance(before.get("fingerprint"), dict) else {}


def changes_since(folder: Path, found: Mapping[str, Any]) -> list[str]:
    """What has changed in the data since the newest session."""
    before = read_record(folder)
    if not before and "held_out_by" in found and any(folder.glob("checkpoints/*")):
        return ["nothing says which pictures its validation had"]
    return _name_differences(before, found)


def _name_differences(before: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    return _shorten_texts(list(changes(before, found))) if before else []


def is_accepted(folder: Path) -> bool:
    """Whether the user has accepted other data since the newest session."""
    return _acceptances(folder) > read_record(folder).get("accepted", 0)


def other_content(folder: Path, changed: list[str], why: str = "") -> Problem:
    """The refusal of a run whose data has changed."""
    text = f"the data is not what it was in the run's session before: {'; '.join(changed)}{why}"
    return Problem("dataset", text, remedy=f"leyden resume {shorten_path(folder)} {ACCEPTED}=accept")


def with_history(folder: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    """What was found, with what earlier sessions had found if it was another content."""
    before = read_record(folder)
    history = list(before.get("history", []))
    changed = _name_differences(before, found)
    if changed:
        kept = {name: before[name] for name in ("splits", "fingerprint")}
        history.append({"until": datetime.now().astimezone().isoformat(timespec="seconds"), "changed": changed, **kept})
    return {**found, "accepted": _acceptances(folder), **({"history": history} if history else {})}


def _acceptances(folder: Path) -> int:
    """How often a user has accepted changed data by `leyden resume`: each counts for the next session alone."""
    return sum(each.get(ACCEPTED) == "accept" for each in changes_of(folder))


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The differences, by split and class; none if the data may have been divided by another number of workers."""
    if before.get("workers") != now.get("workers"):
        return
    old, new = _parts(before), _parts(now)
    for split in {**old, **new}:
        if split not in new or split not in old:
            yield f"{split} is {'gone' if split in old else 'new'}"
            continue
        named = list(_count_differences(split, old[split], new[split]))
        yield from named
        prints = [each.get("fingerprint", {}).get(split) for each in (before, now)]
        if not named and None not in prints and prints[0] != prints[1]:
            same = prints[0].split()[0] == prints[1].split()[0]
            yield f"{split}: {'sizes of files' if same else 'names of files, or their classes,'} are others"
    if before.get("held_out") and now.get("held_out") and before.get("held_out_by") != now.get("held_out_by"):
        yield "validation: held out of each class by the pictures' names now, and of all of them together before"


def _count_differences(split: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if "classes" in old and "classes" in new:
        counts = old["classes"], new["classes"]
        for name in {**counts[0], **counts[1]}:
            was, now = (each.get(name) for each in counts)
            if was is None or now is None:
                yield f"{split}: class {name} is {'new' if was is None else 'gone'}"
            elif was != now:
                yield f"{split}: {name}: {was:,} pictures before, {now:,} now"
    elif None not in (old["samples"], new["samples"]) and old["samples"] != new["samples"]:
        yield f"{split}: {old['samples']:,} samples before, {new['samples']:,} now"


def _parts(found: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Counts of each split; what is held out of the training data counts with it."""
    parts = {name: part for name, part in found.get("splits", {}).items() if part is not None}
    if not found.get("held_out") or "val" not in parts:
        return parts
    train, val = parts["train"], parts.pop("val")
    both = {name: count + val["classes"][name] for name, count in train.get("classes", {}).items()}
    parts["train"] = {"samples": train["samples"] + val["samples"], **({"classes": both} if both else {})}
    return parts


def _shorten_texts(texts: list[str]) -> list[str]:
    return texts if len(texts) <= _MOST else [*texts[:_MOST], f"and {len(texts) - _MOST} more"]
