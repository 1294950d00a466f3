"""The tables of docs/figures.md, of docs/systems/index.md and of the README, written from benchmarks/results/*.json.

    python benchmarks/figures.py           # rewrites these pages
    python benchmarks/figures.py --check   # exit code 1 where a page is not up to date

A file holds one subject: a title, a text, columns, and measurements, newest first, each with machine, date, commit,
command and rows. Date and commit are those of the measured tree, or, where that was not recorded, of the commit that
wrote the figure down. A cell is formatted by its column's format; a row with `values` has a template of its own.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_ORDER = (
    "step_overhead", "openmp_waiting", "startup", "shared_imports", "agents", "training",
    "one_cycle", "failures", "slow_links", "local_update", "straggler", "five_systems", "twins", "hopping",
    "async_checkpoint", "spatial_bytes", "dropout", "data", "prepare", "loading", "crop_flip", "block_shuffle",
    "kills", "decode_limits", "planner", "planner_memory", "planner_gpu_memory", "faults", "hangs", "hostile_corpus",
    "fuzzing", "guided_fuzzing", "command_speed", "export",
)  # fmt: skip
CAMPAIGN = RESULTS / "campaign.json"
README_FIGURES = ("step_overhead", "slow_links", "failures")
ORIGIN = ("machine", "date", "commit", "command")


def read(subject: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{subject}.json").read_text())


def cell(row: Mapping[str, Any], column: str, style: str) -> str:
    """A cell of a table; empty where the row has no such value."""
    if column not in row:
        return ""
    if "values" in row:
        return str(row[column]).format(*row["values"])
    return format(row[column], style)


def table(columns: Mapping[str, Sequence[str]], measurement: Mapping[str, Any]) -> Iterator[str]:
    """One measurement: a line that says where it comes from, then its rows."""
    rows = measurement["rows"]
    own = [name for name in ORIGIN if any(name in row for row in rows)]
    shared = [name for name in ORIGIN if name not in own]
    commands = "" if "command" in own else f"`{measurement['command']}`: "
    yield commands + ", ".join(
        f"commit {measurement[name]}" if name == "commit" else measurement[name] for name in shared if name != "command"
    )
    yield ""
    heads = ["", *(title for title, _ in columns.values()), *own]
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        origin = [row.get(name, measurement[name]) for name in own]
        origin = [f"`{value}`" if name == "command" else value for name, value in zip(own, origin, strict=True)]
        cells = [row["what"], *(cell(row, name, style) for name, (_, style) in columns.items()), *origin]
        yield "| " + " | ".join(cells) + " |"


def newest_of_each(measurements: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The newest measurement by each command; of rows with commands of their own, of each set of those."""
    found: dict[object, Mapping[str, Any]] = {}
    for measurement in measurements:
        commands = {row.get("command", measurement.get("command")) for row in measurement["rows"]}
        found.setdefault(frozenset(commands), measurement)
    return list(found.values())


def subjects() -> list[str]:
    """Files in the order of the page, calls of the GPU battery first; of those that wait for a first measurement, none
    is there."""
    gpu_calls = sorted(file.stem for file in RESULTS.glob("gpu-[0-9].json"))
    return [*gpu_calls, *(subject for subject in _ORDER if (RESULTS / f"{subject}.json").exists())]


def page() -> str:
    """The generated part of docs/figures.md."""
    lines: list[str] = []
    for subject in subjects():
        content = read(subject)
        lines += [f"## {content['title']}", "", content["text"], ""]
        for measurement in newest_of_each(content["measurements"]):
            lines += [*table(content["columns"], measurement), ""]
    return "\n".join([*lines, *campaign()]).rstrip()


def side_by_side() -> str:
    """The generated part of docs/systems/index.md."""
    content = read("five_systems")
    lines = [content["text"], ""]
    for measurement in content["measurements"]:
        lines += [*table(content["columns"], measurement), ""]
    return "\n".join(lines).rstrip()


def campaign() -> list[str]:
    """The last run of the lane of tests that is run by hand, as benchmarks/campaign.py has written it down."""
    if not CAMPAIGN.exists():
        return []
    last = json.loads(CAMPAIGN.read_text())
    environment = "".join(f"{name}={value} " for name, value in last["environment"].items())
    counts = ("tests", "failures", "errors", "skipped", "minutes")
    return [
        "## The campaign",
        "",
        "Whole matrices of workers, schemes and precisions, and repeated kills and requeues, beyond the cases in CI.",
        "",
        f"`{environment}{last['command']}`: {last['machine']}, {last['date']}, commit {last['commit']}",
        "",
        "| " + " | ".join(counts) + " |",
        "|---" * len(counts) + "|",
        "| " + " | ".join(str(last[name]) for name in counts) + " |",
    ]


def readme() -> str:
    """The README's table: what a subject's file says under `readme`, from the newest measurement that has the row."""
    lines = ["| | figure | measured |", "|---|---|---|"]
    for subject in README_FIGURES:
        content = read(subject)
        chosen = content["readme"]
        found = [_newest(content, what) for what, _ in chosen["from"]]
        values = [_value(row, path) for (_, row), (_, path) in zip(found, chosen["from"], strict=True)]
        measurement, row = found[0]
        origin = {name: row.get(name, measurement[name]) for name in ORIGIN}
        measured = f"`{origin['command']}`, {origin['date']}, commit {origin['commit']}"
        lines.append(f"| {chosen['what']} | {chosen['figure'].format(*values)} | {measured} |")
    return "\n".join(lines)


def _newest(content: Mapping[str, Any], what: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    for measurement in content["measurements"]:
        for row in measurement["rows"]:
            if row["what"].startswith(what):
                return measurement, row
    raise KeyError(what)


def _value(row: Mapping[str, Any], path: str | int) -> Any:
    """A column of the row, or one of its `values` by number."""
    return row["values"][path] if isinstance(path, int) else row[path]


def filled(text: str, name: str, content: str) -> str:
    """A page with the part between its two markers replaced."""
    begin, end = f"<!-- figures: {name} -->", "<!-- /figures -->"
    assert text.count(begin) == 1
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n\n{content}\n\n{end}", text)


def pages() -> dict[Path, str]:
    """Each page as it should be."""
    parts = {
        ROOT / "README.md": ("readme", readme()),
        ROOT / "docs" / "figures.md": ("all", page()),
        ROOT / "docs" / "systems" / "index.md": ("side by side", side_by_side()),
    }
    return {path: filled(path.read_text(), name, content) for path, (name, content) in parts.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the tables of figures from benchmarks/results/*.json.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 where a page is out of date")
    check = parser.parse_args().check
    outdated = {path: text for path, text in pages().items() if path.read_text() != text}
    for path, text in outdated.items():
        print(f"{path.relative_to(ROOT)} {'is out of date' if check else 'written'}")
        if not check:
            path.write_text(text)
    return 1 if check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
