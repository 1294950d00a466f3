"""The fault campaign: runs that are killed, stopped, starved and robbed of their disk, a pairwise cover of the cells.

    python benchmarks/fault_campaign.py                  # all cells, an hour on two quiet cores; as root
    python benchmarks/fault_campaign.py --part 2/8       # an eighth of them; nothing is written down
    python benchmarks/fault_campaign.py --reports A.xml B.xml    # write down what pytest has reported of parts

The result of all cells is written to benchmarks/results/faults.json.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from measurement import ROOT, write_subject

RESULT = ROOT / "benchmarks" / "results" / "faults.json"
TESTS = "tests/campaign/test_faults.py"
COMMAND = ["pytest", "-n0", "-m", "slow or campaign", "--timeout=900"]
TITLE = "Faults"
TEXT = (
    "A fault in a phase of a run under a strategy: every pair of the three stands in a cell. A cell passes if the run "
    "ends by itself with one sentence and no traceback, or goes on; leaves no process behind; if every checkpoint of "
    "before can be read; and if `leyden resume` then ends, synchronous strategies with the weights of the undisturbed "
    "run, bit for bit."
)
COLUMNS = {"cells": ["cells", "d"], "passed": ["passed", "d"], "skipped": ["skipped", "d"]}
_NAME = re.compile(r"test_a_fault\[(.+?)-")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the fault campaign, and write its result down.")
    parser.add_argument("--part", metavar="N/OF", help="run the n-th of so many parts; write nothing")
    parser.add_argument("--reports", nargs="+", type=Path, metavar="XML", help="pytest's reports of all parts")
    options = parser.parse_args()
    if options.reports:
        write(options.reports)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        cells = part(*map(int, options.part.split("/"))) if options.part else [TESTS]
        code = subprocess.call([sys.executable, "-m", *COMMAND, f"--junitxml={report}", *cells], cwd=ROOT)
        if not options.part and code <= 1:
            write([report])
    return code


def part(number: int, of: int) -> list[str]:
    """Cells of the n-th of so many parts, each with about as many of every fault."""
    listing = [sys.executable, "-m", *COMMAND, "--collect-only", "-q", TESTS]
    listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [line for line in listed.splitlines() if "::test_a_fault[" in line][number - 1 :: of]


def outcomes(reports: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Fault and outcome of each cell; of one that was run again the last."""
    last: dict[str, str] = {}
    for report in reports:
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            kinds = {child.tag for child in case}
            outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            last[case.get("name", "")] = outcome
    for name, outcome in last.items():
        match = _NAME.match(name)
        if match is not None:
            yield match[1].replace("_", " "), outcome


def write(reports: Sequence[Path]) -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for fault, outcome in outcomes(reports):
        counts[fault][outcome] += 1
        counts["all"][outcome] += 1
    rows = [
        {"what": fault, "cells": found.total(), "passed": found["passed"], "skipped": found["skipped"]}
        for fault, found in sorted(counts.items(), key=lambda item: item[0] == "all")
    ]
    write_subject(RESULT, TITLE, TEXT, COLUMNS, "python benchmarks/fault_campaign.py", rows)


if __name__ == "__main__":
    sys.exit(main())
