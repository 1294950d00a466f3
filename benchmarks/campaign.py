"""The test lane that is run by hand: whole matrices, repeated kills and requeues, beyond the one case in CI.

    python benchmarks/campaign.py                      # about an hour on two cores; as root, with Slurm and `ip`
    python benchmarks/campaign.py tests/strategies/test_fsdp.py   # some of it; nothing is written down

LEYDEN_KILLS, LEYDEN_REQUEUES and LEYDEN_POWERSGD_RUNS say how often to kill, requeue and race. The result of a whole
campaign is written to benchmarks/results/campaign.json. Faults, hangs and hostile input (tests/campaign/) have commands
of their own.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "campaign.json"
COMMAND = ["pytest", "-n0", "-m", "campaign", "--ignore=tests/campaign", "--timeout=3600", "--durations=40"]


def main() -> int:
    some = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = subprocess.call([sys.executable, "-m", *COMMAND, f"--junitxml={report}", *some], cwd=ROOT)
        if some or code > 1:  # interrupted, or nothing was run
            return code
        (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result_of(suite), indent=2) + "\n")
    print(f"written to {RESULT.relative_to(ROOT)}")
    return code


def result_of(suite: ElementTree.Element) -> dict[str, object]:
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True)
    counts = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    return {
        "command": "python benchmarks/campaign.py",
        "environment": {name: value for name, value in os.environ.items() if name.startswith("LEYDEN_")},
        "date": date.today().isoformat(),
        "commit": commit.strip(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "minutes": round(float(suite.get("time", "0")) / 60, 1),
        **counts,
    }


if __name__ == "__main__":
    sys.exit(main())
