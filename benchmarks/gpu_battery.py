"""What the calls of the GPU battery share: checks with a limit, one JSON line each, resumed where they stopped.

    python benchmarks/gpu_1_correctness.py        # one process
    python benchmarks/gpu_2_ranks.py              # several NCCL ranks on one GPU
    python benchmarks/gpu_3_speed.py              # against a hand-written loop
    python benchmarks/gpu_4_promises.py           # recipes to their end, plans against measured steps

Each call takes at most seven minutes: what is left then is done by the same command, which skips the checks whose lines
are in its file, benchmarks/results/gpu-N.jsonl. A check has four minutes. gpu-N.json has the lines with the device,
for docs/figures.md. `--rehearse` runs the same code on the CPU, smaller, into gpu-N-rehearsal.jsonl: a figure of a
rehearsal says nothing about a GPU.
"""

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measurement import measurement

SECONDS = 420.0
CHECK_SECONDS = 240.0
RESULTS = Path(__file__).parent / "results"
COLUMNS = {"value": ["value", ".3g"], "limit": ["at most", ".3g"], "passed": ["passed", ""], "text": ["", ""]}
"""Of a call's table in docs/figures.md."""


class Skipped(Exception):
    """A check that this machine cannot make; the message says why."""


class TimeOver(BaseException):
    """A check took too long. No `except Exception` of the code under test takes it for an error of its own."""


@dataclass(frozen=True)
class Outcome:
    """What a check measured.

    Args:
        value: passes where it is at most `limit`.
        limit: None: a figure without a limit.
    """

    value: float
    limit: float | None = None
    text: str = ""

    @property
    def ok(self) -> bool | None:
        return None if self.limit is None else self.value <= self.limit


Checks = Mapping[str, Callable[[], Outcome]]


def run_checks(
    checks: Checks, file: Path, seconds: float = SECONDS, again: bool = False
) -> Generator[dict[str, Any], None, None]:
    """Make the checks that the file has no line of, append a line for each, and yield it.

    A check that takes longer than CHECK_SECONDS has failed. One that the end of the call cuts off has no line: the next
    call makes it.

    Args:
        again: make those again that have failed.
    """
    done = {line["check"] for line in lines_of(file) if not (again and line["ok"] is False)}
    end = time.monotonic() + seconds
    file.parent.mkdir(parents=True, exist_ok=True)
    for name, check in checks.items():
        if name in done:
            continue
        left = end - time.monotonic()
        line = _line(name, check, min(left, CHECK_SECONDS)) if left > 0 else None
        if line is None:
            return
        with file.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        yield line


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The newest line of each check; a line that was cut off is left out."""
    newest: dict[str, dict[str, Any]] = {}
    for text in file.read_text().splitlines() if file.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        newest[line["check"]] = line
    return list(newest.values())


def _line(name: str, check: Callable[[], Outcome], seconds: float) -> dict[str, Any] | None:
    """What a check has found; None where the call has ended first."""
    begin = time.monotonic()
    line: dict[str, Any] = {"check": name, "value": None, "limit": None, "ok": None}
    try:
        with at_most(seconds):
            outcome = check()
        line |= {"value": outcome.value, "limit": outcome.limit, "ok": outcome.ok, "text": outcome.text}
    except Skipped as reason:
        line |= {"text": f"skipped: {reason}"}
    except TimeOver:
        if seconds < CHECK_SECONDS:
            return None
        line |= {"ok": False, "text": f"no end after {seconds:g} s"}
    except Exception as error:
        line |= {"ok": False, "text": "".join(traceback.format_exception_only(error)).strip()[-600:]}
        traceback.print_exc()
    return {**line, "seconds": round(time.monotonic() - begin, 2)}


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """
    Raises:
        TimeOver: the block takes longer. A call of the driver that never returns is not interrupted.
    """

    def over(*_: Any) -> None:
        raise TimeOver

    before = signal.signal(signal.SIGALRM, over)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    began = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # a test's own alarm
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - time.monotonic() + began), interval)


def figures_of(number: int, lines: list[dict[str, Any]], device: str) -> dict[str, Any]:
    """A call's lines as a subject of docs/figures.md; values without a limit are figures."""
    rows: list[dict[str, Any]] = []
    for line in lines:
        row = {"what": line["check"], "passed": {True: "yes", False: "**no**", None: ""}[line["ok"]]}
        row |= {key: line[key] for key in ("value", "limit") if line[key] is not None}
        rows.append({**row, "text": line.get("text", "").replace("|", "/").replace("\n", " ")})
    command = f"python benchmarks/{Path(sys.argv[0]).name}"
    return {
        "title": f"GPU battery, call {number}",
        "text": "Checks on a GPU, each with the largest value with which it passes; without a limit, figures.",
        "columns": COLUMNS,
        "measurements": [{**measurement(command, rows), "machine": device}],
    }


def arguments_of(text: str | None) -> argparse.Namespace:
    """--rehearse, --again, --only, --list."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, smaller")
    parser.add_argument("--again", action="store_true", help="make those checks again that have failed")
    parser.add_argument("--only", action="append", help="checks whose names have this text; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the names of the checks")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the file of results")
    return parser.parse_args()


def main(number: int, make: Callable[[str, bool], Checks], text: str | None) -> int:
    """Run one call. Returns 0 where no check has failed, 1 where one has, 2 without a GPU."""
    arguments = arguments_of(text)
    if not arguments.rehearse and not torch.cuda.is_available():
        print("torch sees no CUDA device: --rehearse runs on the CPU")
        return 2
    device = "cpu" if arguments.rehearse else "cuda"
    out = arguments.out.resolve()
    os.chdir(Path(__file__).parent)  # where runs look for classes, see gpu_examples.py
    wanted: list[str] = arguments.only or [""]
    made = make(device, arguments.rehearse)
    checks = {name: check for name, check in made.items() if any(text in name for text in wanted)}
    if arguments.list:
        print("\n".join(checks))
        return 0
    suffix = "-rehearsal" if arguments.rehearse else ""
    file = out / f"gpu-{number}{suffix}.jsonl"
    failed = False
    for line in run_checks(checks, file, again=arguments.again):
        failed = failed or line["ok"] is False
        print(json.dumps(line), flush=True)
    lines = lines_of(file)
    left = len(checks.keys() - {line["check"] for line in lines})
    where = "cpu" if device == "cpu" else torch.cuda.get_device_name()
    where += f", torch {torch.__version__}"
    file.with_suffix(".json").write_text(json.dumps(figures_of(number, lines, where), indent=2) + "\n")
    print(f"{file}: {left} checks left; {where}")
    return 1 if failed else 0
