"""Hostile run folders of strangers: configs, summaries, leases, and files that are none."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import yaml
from damaged_run_files import CONFIGS, SUMMARIES
from foreign_configs import FOREIGN, edited
from hostile_entries import STRANGER, Entry, Make
from yaml_bombs import BOMBS


def _file(name: str, text: str | bytes) -> Make:
    def make(here: Path) -> None:
        (here / "run" / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return make


def _given_away(change: Callable[[Path], None]) -> Make:
    """A run of another user, which only root can make."""

    def make(here: Path) -> None:
        change(here / "run")
        for name in ("config.yaml", "."):
            os.chown(here / "run" / name, STRANGER, STRANGER)

    return make


def _special(name: str, kind: str) -> Make:
    def make(here: Path) -> None:
        path = here / "run" / name
        path.unlink(missing_ok=True)
        if kind == "FIFO":
            os.mkfifo(path)
        elif kind == "a device":
            path.symlink_to("/dev/zero")
        elif kind == "a folder":
            path.mkdir()
        else:
            path.symlink_to(path.name)

    return make


_MANY_KEYS = "{" + ", ".join(f'"k{n}": {{}}' for n in range(1_000_000)) + "}"
_MANY_LISTS = "[" + "[]," * 5_000_000 + "[]]"
_SESSION = {"started_at": "2026-01-01T00:00:00+00:00", "steps": 1, "samples": 1, "train_seconds": 1.0}
_SUMMARIES: Mapping[str, str] = {
    **SUMMARIES,
    "five million lists": _MANY_LISTS,
    "too many bytes": '"' + "x" * (17 << 20) + '"',
    "seconds of a session": json.dumps({"sessions": [{**_SESSION, "seconds": 5}]}),
    "seconds that are texts": json.dumps({"sessions": [{**_SESSION, "seconds": {"a": "x"}}]}),
    "a session without its zone": json.dumps({"sessions": [_SESSION, {**_SESSION, "started_at": "2026-01-01"}]}),
}
_CHANGES: Mapping[str, str] = {
    "keys": "a: 1\n",
    "a change of nothing": "- changed: [1]\n",
    "numbers for keys": "- changed: {1: 3}\n",
    "keys below a value": "- changed: {trainer.max_epochs.x: 3}\n",
    "deep": "[" * 200_000,
    "a command": yaml.safe_dump([{"changed": {"model": {"_target_": "os.system", "command": "touch canary"}}}]),
}


def foreign_runs() -> Iterator[Entry]:
    for name, (changes, says) in FOREIGN.items():
        make = _given_away(lambda run, changes=changes: edited(run, {**changes, "python_path": [str(run)]}))
        for verb in ("eval", "resume"):
            words = (verb, "run") if verb == "eval" else (verb, "run", "trainer.max_steps=32")
            yield Entry("stranger's run", f"{name}, {verb}", words, [says, "--trust"], make, harmless=verb)
    own = _given_away(lambda run: edited(run, {"python_path": [str(run)]}))
    yield Entry("stranger's run", "torchvision.py in its python_path", ("eval", "run"), [], own, (0,), "eval")


def damaged_runs() -> Iterator[Entry]:
    for name, (text, _) in {**CONFIGS, **{f"a bomb of {name}": bomb for name, bomb in BOMBS.items()}}.items():
        yield Entry("config.yaml", name, ("eval", "run"), ["config.yaml"], _file("config.yaml", text), harmless="eval")
    for name, text in _SUMMARIES.items():
        make = _file("summary.json", text)
        yield Entry("summary.json", name, ("status", "."), ["summary.json", "damaged"], make, (0,), "status")
        words = ("resume", "run", "trainer.max_steps=32")
        yield Entry("summary.json", f"{name}, resume", words, ["summary.json"], make, harmless="resume")
    for name, text in _CHANGES.items():
        says = ["resume.yaml"] if name != "a command" else ["os.system"]
        yield Entry("resume.yaml", name, ("eval", "run"), says, _file("resume.yaml", text), harmless="eval")


def other_files() -> Iterator[Entry]:
    """Files whose damage changes nothing but what they say."""
    for name in ("agent.json", "progress.json", "slurm.json", "pipeline.json", "checkpoints/damaged.json"):
        for kind, text in {
            "deep": "[" * 100_000,
            "another type": '{"pid": [], "session": 3, "step": "x", "job_id": {}}',
            "many keys": _MANY_KEYS,
        }.items():
            yield Entry(name, kind, ("status", "."), ["run"], _file(name, text), (0,), "status")
        yield Entry(name, "a FIFO", ("status", "."), ["run"], _special(name, "FIFO"), (0,), "status")
    for name in ("config.yaml", "resume.yaml"):
        for kind in ("FIFO", "a device", "a folder", "a link to itself"):
            if (name, kind) == ("config.yaml", "a link to itself"):
                continue  # no run then
            yield Entry(name, kind, ("eval", "run"), [name], _special(name, kind), harmless="eval")
    for kind in ("FIFO", "a device", "a folder"):
        yield Entry(
            "summary.json", kind, ("status", "."), ["summary.json"], _special("summary.json", kind), (0,), "status"
        )
    yield Entry(
        "agent.json",
        "a device, resume",
        ("resume", "run", "trainer.max_steps=32"),
        ["agent.json"],
        _special("agent.json", "a device"),
        harmless="resume",
    )
    yield Entry(
        "agent.json",
        "a process of the user's, stop",
        ("stop", "run"),
        ["run"],
        _file("agent.json", json.dumps({"host": os.uname().nodename, "boot": "", "pid": 1, "started": 1})),
        (0, 2),
        "status",
    )
    yield Entry(
        "metrics.csv",
        "bytes",
        ("resume", "run", "trainer.max_steps=32"),
        [],
        _file("metrics.csv", bytes(range(256)) * 4000),
        (0, 1, 2),
        "resume",
    )
