"""The kill campaign: runs killed at random times go on with the samples, pixel for pixel, of the unbroken run.

    python benchmarks/kill_campaign.py                          # about twenty minutes on two cores
    python benchmarks/kill_campaign.py --seconds 400            # a part of it; the same command again goes on

Counts are kept in --keep until there are enough. Writes benchmarks/results/kills.json, also with fewer.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from measurement import ROOT, write_subject

RESULT = ROOT / "benchmarks" / "results" / "kills.json"
TESTS = "tests/data/test_sample_sequence.py"
COMMAND = ["pytest", "-n0", "-q", "-s", "-m", "campaign", "--timeout=7200", TESTS, "-k", "many_kills"]
TITLE = "Samples after a kill"
TEXT = (
    "Runs of 60 steps, of which a worker, or the agent and with it all, is killed up to twice at a random time, and "
    "which `leyden resume` ends. Right: the pixels and labels of every step, also of those trained twice, are those of "
    "an unbroken run of one worker, in their order."
)
COLUMNS = {"kills": ["kills", "d"], "right": ["right", "d"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="in all")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no run is begun after them")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "leyden-kills.json")
    given = parser.parse_args()
    kept: dict[str, Any] = json.loads(given.keep.read_text()) if given.keep.exists() else {"kills": [], "next": 0}
    left = given.kills - sum(row["kills"] for row in kept["kills"])
    values = {"LEYDEN_KILLS": left, "LEYDEN_KILLS_FIRST": kept["next"], "LEYDEN_KILLS_SECONDS": given.seconds}
    environment = {**os.environ, **{name: str(value) for name, value in values.items()}}
    done = subprocess.run(
        [sys.executable, "-m", *COMMAND], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout)
    found = re.search(r"\{\"kills\": .*\}", done.stdout)
    if found is None:
        return done.returncode or 1
    new = json.loads(found[0])
    rows = joined(kept["kills"], new["kills"])
    given.keep.write_text(json.dumps({"kills": rows, "next": new["next"]}))
    every = {"what": "all", **{key: sum(row[key] for row in rows) for key in COLUMNS}}
    write_subject(RESULT, TITLE, TEXT, COLUMNS, "python benchmarks/kill_campaign.py", [*rows, every])
    return done.returncode


def joined(*parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The counts of each way in all parts."""
    counts: dict[str, Counter[str]] = {}
    for row in (row for part in parts for row in part):
        counts.setdefault(row["what"], Counter()).update({key: row[key] for key in COLUMNS})
    return [{"what": what, **found} for what, found in counts.items()]


if __name__ == "__main__":
    sys.exit(main())
