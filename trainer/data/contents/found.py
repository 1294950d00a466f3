"""What was found in the data: for the first lines of a run, and for data.json."""

import json
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ...base.atomic_file import write_atomically
from ...base.log import log
from ...core import declarations
from ..order.partitioning import declared_classes
from ..splits import Splits, Subset
from .identity import DATA_FILE, fingerprints, with_history

_MOST = 10
"""Classes, and reasons for which files are left out, that are listed one by one."""
Found = Mapping[str, Any]
"""Plain values."""


def count_samples(splits: Splits, val_fraction: float) -> Found:
    """Samples by split and class, as far as the dataset declares them unread, and files left out by reason."""
    whole: Any = splits.whole
    of_split = {name: _split(whole, data) for name, data in _each(splits).items()}
    found: dict[str, Any] = {"of": "pictures", "classes": whole.classes, "splits": of_split}
    if isinstance(splits.val, Subset):
        found["held_out"] = val_fraction
        if splits.by_name:
            found["held_out_by"] = "name"
    found["fingerprint"] = fingerprints(splits)
    declared = declarations.of_dataset(whole)
    for name, value in {
        "multi_label": declared.multi_label, "folder": declared.folder, "left_out": declared.left_out
    }.items():  # fmt: skip
        if value:
            found[name] = value
    return found


def count_in_loaders(name: str, classes: int | None, loaders: Mapping[str, Any], workers: int) -> Found:
    """The same of a user's loaders by split; None: the split does not exist."""
    lengths = {
        split: None if loader is None else {"samples": length_of(getattr(loader, "dataset", None))}
        for split, loader in loaders.items()
    }
    return {"of": f"samples of {name}", "classes": classes, "splits": lengths, "fingerprint": {}, "workers": workers}


def announce(found: Found, folder: Path | None = None) -> None:
    """Log what was found, and write it into the run folder."""
    for line in describe_found(found):
        log.info("%s", line)
    if folder is not None:
        keep(found, folder)


def keep(found: Found, folder: Path) -> None:
    """Write what was found into a run folder."""
    kept = with_history(folder, found)
    write_atomically(folder / DATA_FILE, json.dumps(kept, indent=2, default=str) + "\n")


def _each(splits: Splits) -> dict[str, Any]:
    return {"train": splits.train, "val": splits.val, "test": splits.test}


def _split(whole: Any, data: Any) -> dict[str, Any] | None:
    if data is None:
        return None
    counts = _counts(whole, data)
    return {"samples": len(data)} | ({"classes": counts} if counts else {})


def _counts(whole: Any, data: Any) -> dict[str, int] | None:
    """Samples by the name of their class; None: unknown."""
    with suppress(TypeError, ValueError, RuntimeError):  # a user's `labels` may be anything
        declared = declarations.of_dataset(whole)
        of_each, sets, classes = declared_classes(data), declared.label_sets, int(whole.classes)
        if of_each is None or of_each.shape != (len(data),) or (sets is None and declared.multi_label):
            return None
        counts: list[int] = torch.bincount(of_each.long(), minlength=classes if sets is None else len(sets)).tolist()
        if sets is not None:
            of_class = Counter[int]()
            for samples, each in zip(counts, sets, strict=True):
                of_class.update(dict.fromkeys(each, samples))
            counts = [of_class[number] for number in range(classes)]
        names = declared.class_names or range(classes)
        return {str(name): count for name, count in zip(names, counts, strict=True)}
    return None


def length_of(data: Any) -> int | None:
    """Samples of a dataset; None: unknown."""
    with suppress(TypeError, NotImplementedError):
        return len(data) if isinstance(data, Sized) else None
    return None


def describe_found(found: Found) -> list[str]:
    """The lines that say what was found."""
    splits, held_out = found["splits"], found.get("held_out")
    parts = [splits["train"], splits["val"]] if held_out else [splits["train"]]
    samples = None if any(part["samples"] is None for part in parts) else sum(part["samples"] for part in parts)
    first = f"{'an unknown number of' if samples is None else f'{samples:,}'} {found['of']}{_classes(found, parts)}"
    if found.get("folder"):
        first += f", in {found['folder']}"
    val = _samples(splits["val"])
    if held_out:
        share = f"{100 * held_out:.3g} %{' of each class' * (found.get('held_out_by') == 'name')}"
        val = f"{share}, the same for every seed ({val})"
    lines = [f"{first}; validation: {val}; test: {_samples(splits['test'])}"]
    lines += _alike(list(splits["train"].get("classes", {})))
    return lines + ([f"left out: {_left_out(found['left_out'])}"] if found.get("left_out") else [])


def _samples(split: Mapping[str, Any] | None) -> str:
    if split is None:
        return "none"
    missing = [_plain(name) for name, count in split.get("classes", {}).items() if not count]
    lacks = f", none of {_shorten_texts(missing)}" if split["samples"] and missing else ""
    return "unknown" if split["samples"] is None else f"{split['samples']:,}{lacks}"


def _alike(classes: Sequence[str]) -> list[str]:
    """A line on classes that a reader takes for one."""
    same: dict[str, list[str]] = {}
    for name in classes:
        same.setdefault(unicodedata.normalize("NFKC", name).casefold().strip(), []).append(name)
    found = [" and ".join(map(repr, names)) for names in same.values() if len(names) > 1]
    return [f"different classes with names that look alike: {_shorten_texts(found)}"] if found else []


def _classes(found: Found, parts: Sequence[Mapping[str, Any]]) -> str:
    number = found["classes"]
    if number is None:
        return ""
    text = (
        f"{', each with any number of' if found.get('multi_label') else ' of'} {number:,} class{'es' * (number != 1)}"
    )
    if any("classes" not in part for part in parts):
        return text
    counts = {name: sum(part["classes"][name] for part in parts) for name in parts[0]["classes"]}
    if len(counts) <= _MOST:
        return f"{text}: {', '.join(f'{_plain(name)} {count:,}' for name, count in counts.items())}"
    least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    return f"{text}, the smallest {_plain(least)} {counts[least]:,}, the largest {_plain(most)} {counts[most]:,}"


def _plain(name: str) -> str:
    """A name on one line."""
    return name if name.isprintable() else repr(name)


def _left_out(reasons: Mapping[str, int]) -> str:
    suffixes = sorted((each for each in reasons if each.startswith(".")), key=lambda each: (-reasons[each], each))
    others = [f"{each} ({reasons[each]:,})" for each in reasons if each not in suffixes]
    if suffixes:
        files = sum(reasons[each] for each in suffixes)
        each = _shorten_texts([f"{suffix} {reasons[suffix]:,}" for suffix in suffixes])
        others.insert(0, f"{files:,} file{'s' * (files != 1)} ({each})")
    return _shorten_texts(others)


def _shorten_texts(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST
    return ", ".join(texts[:_MOST]) + (f" and {more} more" if more > 0 else "")
