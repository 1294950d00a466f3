"""The hang campaign: injected hangs are reported soon and rightly, and runs that are only slow are left alone.

    LEYDEN_CLEAN_RUNS=100 python benchmarks/hang_campaign.py     # an hour and a half, most of it waiting

Writes benchmarks/results/hangs.json.
"""

import json
import os
import re
import subprocess
import sys
from typing import Any

from measurement import ROOT, write_subject

RESULT = ROOT / "benchmarks" / "results" / "hangs.json"
TESTS = "tests/campaign/test_hang_campaign.py"
COMMAND = ["pytest", "-n0", "-q", "-s", "-m", "campaign", "--timeout=10800", TESTS]
TITLE = "Hangs"
TEXT = (
    "A worker is stopped, its collective never ends, its loader is stuck or its output pipe is full, in a phase of a "
    "run under a strategy. Right: the run names rank, host and phase within 15 s. A clean run starts slowly, "
    "pauses, and reads, validates and saves for long the first time, every other one with all cores taken; it is "
    "right if it ends without an alarm."
)
COLUMNS = {"right": ["right", "s"], "seconds": ["slowest, s", ".1f"]}


def main() -> int:
    output = ""
    with subprocess.Popen([sys.executable, "-m", *COMMAND], cwd=ROOT, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        for line in tests.stdout:
            print(line, end="", flush=True)
            output += line
    write(output)
    return tests.returncode


def write(output: str) -> None:
    """Write down what the campaign has printed."""
    hangs: list[dict[str, Any]] = [json.loads(found) for found in re.findall(r"\{\"cell\": .*\}", output)]
    clean = re.findall(r"(\d+) of \d+ clean runs, (\d+) alarms", output)
    rows: list[dict[str, object]] = []
    for kind in [*sorted({hang["cell"].split("-")[0] for hang in hangs}), "all injected hangs"]:
        found = [hang for hang in hangs if kind.startswith("all") or hang["cell"].startswith(f"{kind}-")]
        right = sum(hang["right"] for hang in found)
        slowest = max(hang["seconds"] for hang in found)
        rows.append({"what": kind, "right": f"{right} of {len(found)}", "seconds": slowest})
    runs, alarms = map(int, clean[-1])
    rows.append({"what": "clean runs", "right": f"{runs - alarms} of {runs}"})
    command = f"LEYDEN_CLEAN_RUNS={os.environ.get('LEYDEN_CLEAN_RUNS', 20)} python benchmarks/hang_campaign.py"
    write_subject(RESULT, TITLE, TEXT, COLUMNS, command, rows)


if __name__ == "__main__":
    sys.exit(main())
