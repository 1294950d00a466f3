"""Measurement: rows of figures with the machine, date, commit and command that they come from."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]


def measurement(command: str, rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """What `measurements` of a file of benchmarks/results/ holds of this tree on this machine, today."""
    return {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, CPU",
        "date": date.today().isoformat(),
        "commit": _commit(),
        "command": command,
        "rows": list(rows),
    }


def _commit() -> str:
    """Of the tree; a copy without its history, as on a lent machine, has none."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.check_output(command, cwd=ROOT, text=True, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("LEYDEN_COMMIT", "not recorded")


def write_subject(
    file: Path, title: str, text: str, columns: Mapping[str, Sequence[str]], command: str,
    rows: Sequence[Mapping[str, object]],
) -> None:  # fmt: skip
    """Write a subject of docs/figures.md with this one measurement."""
    subject = {"title": title, "text": text, "columns": columns, "measurements": [measurement(command, rows)]}
    file.write_text(json.dumps(subject, indent=2) + "\n")
    print(f"written to {file.relative_to(ROOT)}")
