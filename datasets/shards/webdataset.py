"""Index of WebDataset tars that others have written: made once, kept in their folder or in the user's cache."""

import hashlib
import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cache_folder import cache_folder
from ..decode import SUFFIXES, is_image
from ..label_file import numbered
from ..limits import Limits
from ..listing.identity import name_hashes
from ..tar_members import is_hidden, tar_members
from .index import MOST_CLASSES, SAMPLE, VERSION, ShardFile, ShardSet, SplitIndex, read_index, write_index, write_rows

_SPLIT = re.compile(r"(?:^|[^a-z])(train|val|test)(?:ing|id|idation)?(?=[^a-z]|$)")
_CLASS_BYTES, _JSON_BYTES = 32, 1 << 20
_MOST_SUFFIXES, _LONGEST = 100, 12
_Label = int | str | tuple[int | str, ...]
"""Class by its number or name, or all classes of an image."""


class _Sample(NamedTuple):
    offset: int
    size: int
    label: _Label
    key: str


def indexed_in_place(root: Path, known: ShardSet | None, json_label: str, limits: Limits) -> tuple[Path, ShardSet]:
    """The index of a folder of tars, and the folder that holds it.

    Several processes may do this at a time: each writes the same files beside and renames them.

    Args:
        known: the index in the folder itself, if there is one.

    Raises:
        ValueError: no tars, or they cannot be indexed.
    """
    shards = [_shard(root, name) for name in _tars(root, limits)]
    if not shards:
        raise ValueError(f"{root} holds no shards; expected those of leyden prepare, or uncompressed .tar files")
    folder, listed = _cache(root, json_label), {shard.name: shard for shard in shards}
    asked = (json_label, list(SUFFIXES))
    for place, found in ((root, known), (folder, None)):
        found = found or read_index(place)
        if found is not None and _listed(found) == listed and (found.json_label, found.suffixes) == asked:
            return place, found
    splits = {split: list(each) for split, each in _by_split(shards).items()}
    unread: Counter[str] = Counter()
    samples = {
        name: [_samples(root / shard.name, json_label, limits, unread) for shard in each]
        for name, each in splits.items()
    }
    for place in (root, folder):
        try:
            place.mkdir(parents=True, exist_ok=True)
            return place, _written(place, splits, samples, json_label, unread)
        except OSError as error:
            problem = error
    raise ValueError(f"the index of {root} cannot be written into its folder, nor into {folder}: {problem}")


def _tars(root: Path, limits: Limits) -> Iterator[str]:
    """Names of the tars in a folder and in the folders inside of it, sorted."""
    found: list[str] = []
    for folder in (root, *sorted(path for path in root.iterdir() if path.is_dir() and not is_hidden(path.name))):
        for path in folder.iterdir():
            if path.name.endswith(".tar") and not is_hidden(path.name):
                found.append(str(path.relative_to(root)))
                limits.check_members(len(found), str(root))
    yield from sorted(found)


def _shard(root: Path, name: str) -> ShardFile:
    about = (root / name).stat()
    # the number of samples is known once it is indexed
    return ShardFile(name=name, bytes=about.st_size, samples=0, mtime_ns=about.st_mtime_ns)


def _listed(found: ShardSet) -> dict[str, ShardFile]:
    shards = [shard for split in found.splits.values() for shard in split.shards]
    return {shard.name: shard.model_copy(update={"samples": 0}) for shard in shards}


def _cache(root: Path, json_label: str) -> Path:
    digest = hashlib.sha256(
        f"{root.resolve()}\0{json_label}\0{VERSION}".encode("utf-8", "surrogateescape")
    ).hexdigest()[:24]
    return cache_folder() / "shards" / digest


def _by_split(shards: Sequence[ShardFile]) -> dict[str, list[ShardFile]]:
    found: dict[str, list[ShardFile]] = {}
    for shard in shards:
        named = _SPLIT.search(shard.name.lower())
        found.setdefault(named[1] if named else "train", []).append(shard)
    return found


def _samples(path: Path, json_label: str, limits: Limits, unread: Counter[str]) -> list[_Sample]:
    """The samples of a tar: files one after the other whose names are equal up to the first dot."""
    found: list[_Sample] = []
    group: dict[str, tuple[int, int]] = {}
    current: str | None = None
    try:
        if not path.is_file():
            raise ValueError("not a regular file")
        with path.open("rb") as file:
            for name, offset, size in tar_members(path, limits):
                if offset + size > os.fstat(file.fileno()).st_size:
                    raise ValueError(f"cut off: {name} at byte {offset:,} has {size:,} bytes")
                folder, slash, last = name.rpartition("/")
                stem, dot, suffix = last.partition(".")
                key = folder + slash + stem
                if key != current and current is not None:
                    found += _sample(file.fileno(), current, group, json_label, unread)
                    group = {}
                current = key
                group[dot + suffix.lower()] = (offset, size)
            if current is not None:
                found += _sample(file.fileno(), current, group, json_label, unread)
    except (tarfile.TarError, ValueError) as error:
        text = str(error).removeprefix(f"{path} ").removeprefix(f"{path}: ")
        raise ValueError(f"{path} cannot be read as a shard: {text}") from error
    return found


def _sample(
    handle: int, key: str, group: Mapping[str, tuple[int, int]], json_label: str, unread: Counter[str]
) -> list[_Sample]:
    """The image of a group with its class; [] if it has no image."""
    image = next((suffix for suffix in group if is_image(suffix)), None)
    for suffix in group.keys() - ({image, ".cls", ".json"} if image else set()):
        is_known = suffix in unread or len(unread) < _MOST_SUFFIXES
        unread[suffix if is_known and 1 < len(suffix) <= _LONGEST else "files without suffix"] += 1
    if image is None:
        return []
    offset, size = group[image]
    if size >= 1 << 32:
        raise ValueError(f"{key} at byte {offset:,} has {size:,} bytes")
    if ".cls" in group:
        return [_Sample(offset, size, _number(key, _content(handle, key, *group[".cls"], _CLASS_BYTES)), key)]
    if ".json" in group:
        return [
            _Sample(offset, size, _of_json(key, _content(handle, key, *group[".json"], _JSON_BYTES), json_label), key)
        ]
    raise ValueError(f"{key} at byte {offset:,} has no class: neither .cls nor .json")


def _content(handle: int, key: str, offset: int, size: int, most: int) -> bytes:
    if size > most:
        raise ValueError(f"the class of {key} at byte {offset:,} has {size:,} bytes, more than {most:,}")
    return os.pread(handle, size, offset)


def _number(key: str, text: bytes) -> int:
    if not re.fullmatch(rb"\s*\d{1,10}\s*", text) or int(text) >= MOST_CLASSES:
        raise ValueError(f"the class of {key} is no whole number from 0 on: {text[:20]!r}")
    return int(text)


def _of_json(key: str, text: bytes, json_label: str) -> _Label:
    """Class, or the classes of a list."""
    values: object = None
    with suppress(ValueError, RecursionError):
        values = json.loads(text)
    label = values.get(json_label) if isinstance(values, dict) else None
    if isinstance(label, list):
        return tuple(dict.fromkeys(_class(key, each, json_label) for each in label))
    return _class(key, label, json_label)


def _class(key: str, label: object, json_label: str) -> int | str:
    if isinstance(label, bool) or not isinstance(label, int | str):
        raise ValueError(f"the .json of {key} has no class under dataset.json_label={json_label}")
    if isinstance(label, int) and not 0 <= label < MOST_CLASSES:
        raise ValueError(f"the class of {key} is no whole number from 0 on: {label}"[:200])
    return label


def _written(
    folder: Path,
    splits: Mapping[str, Sequence[ShardFile]],
    samples: Mapping[str, Sequence[Sequence[_Sample]]],
    json_label: str,
    unread: Mapping[str, int],
) -> ShardSet:
    """Write the index of all splits into a folder."""
    found_labels = {sample.label for shards in samples.values() for shard in shards for sample in shard}
    lists = {label for label in found_labels if isinstance(label, tuple)}
    if lists and len(lists) < len(found_labels):
        raise ValueError(
            f"some samples have one class under dataset.json_label={json_label}, and some a list of classes"
        )
    labels = {each for label in found_labels for each in (label if isinstance(label, tuple) else (label,))}
    names = sorted(label for label in labels if isinstance(label, str))
    if names and len(names) < len(labels):
        raise ValueError(f"some classes are numbers and some are names, such as {names[0][:50]!r}")
    if not labels:
        shown = ", ".join(shard.name for shards in splits.values() for shard in shards[:3])
        raise ValueError(f"{shown}: no images")
    numbers: dict[_Label, int] = {name: number for number, name in enumerate(names)}
    label_sets: list[list[int]] | None = None
    if lists:
        ordered = {each: tuple(sorted(numbers[n] if isinstance(n, str) else n for n in each)) for each in lists}
        places = numbered(ordered.values())
        label_sets = [list(each) for each in places]
        numbers = {each: places[ordered[each]] for each in lists}
    found: dict[str, SplitIndex] = {}
    for split, shards in splits.items():
        rows = [_rows(shard.name, each, numbers) for shard, each in zip(shards, samples[split], strict=True)]
        file = f"index-{split}.npy"
        crc = write_rows(folder / file, rows)
        named = [s.model_copy(update={"samples": len(part)}) for s, part in zip(shards, rows, strict=True)]
        found[split] = SplitIndex(file=file, crc32=crc, samples=sum(map(len, rows)), shards=named)
    classes = len(names) or 1 + max(label for label in labels if isinstance(label, int))
    index = ShardSet(
        checksums=False,
        raw=False,
        classes=classes,
        label_sets=label_sets,
        class_names=names or None,
        json_label=json_label,
        suffixes=list(SUFFIXES),
        left_out=dict(unread),
        splits=found,  # pyright: ignore[reportArgumentType]  # its keys are those of _SPLIT
    )
    write_index(folder, index)
    return index


def _rows(shard: str, samples: Sequence[_Sample], numbers: Mapping[_Label, int]) -> NDArray[np.void]:
    rows = np.zeros(len(samples), SAMPLE)
    rows["name"] = name_hashes(f"{shard}/{sample.key}" for sample in samples)
    for row, sample in zip(rows, samples, strict=True):
        label = sample.label if isinstance(sample.label, int) else numbers[sample.label]
        row["offset"], row["size"], row["label"] = sample.offset, sample.size, label
    return rows
