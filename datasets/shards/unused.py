"""What lies in a folder of shards and is not read."""

import os
from collections import Counter
from pathlib import Path

from ..tar_members import is_hidden
from .index import INDEX, ShardSet


def unused_files(root: Path, found: ShardSet) -> dict[str, int]:
    """Files by suffix, folders without shards, and images that could not be read when the shards were written."""
    shards = [shard for split in found.splits.values() for shard in split.shards]
    used = {
        INDEX,
        *(split.file for split in found.splits.values()),
        *(shard.name.partition("/")[0] for shard in shards),
    }
    left_out: Counter[str] = Counter()
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        if entry.name in used or is_hidden(entry.name):
            continue
        if entry.is_dir():
            left_out[f"folder {entry.name}/"] = len(os.listdir(entry.path))
        else:
            left_out[Path(entry.name).suffix.lower() or "files without suffix"] += 1
    unreadable = sum(len(shard.left_out) for shard in shards)
    left_out.update({"images that were unreadable": unreadable} if unreadable else {})
    left_out.update(found.left_out)
    return dict(left_out)
