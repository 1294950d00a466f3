"""Fuzzing by hypothesis: random overrides, YAML, checkpoints, messages and archive indexes, a while for each property.

    python benchmarks/fuzzing.py --seconds 200     # of each of 18 properties: an hour

Writes benchmarks/results/fuzzing.json.
"""

import argparse
import os
import re
import subprocess
import sys

from measurement import ROOT, write_subject

RESULT = ROOT / "benchmarks" / "results" / "fuzzing.json"
TESTS = "tests/campaign/test_fuzzing.py"
COMMAND = ["pytest", "-n0", "-v", "-s", "-m", "slow", "--timeout=7200", TESTS]
TITLE = "Fuzzing"
TEXT = (
    "Random input at every door, made by hypothesis. Right: each example is read, or refused by the documented error "
    "within 2 s of CPU (an override 20 s, the parser of Hydra's grammar is slow at first), and nothing is executed."
)
COLUMNS = {"examples": ["examples", ",d"], "result": ["", "s"]}
_TEST = re.compile(r"test_fuzzing\.py::(\S+) (.*?)(PASSED|FAILED|ERROR)", re.DOTALL)
_EXAMPLES = re.compile(r"^\S.*: (\d+) examples$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=200, help="of each property")
    seconds = parser.parse_args().seconds
    environment = {**os.environ, "LEYDEN_FUZZ_SECONDS": str(seconds)}
    command = [sys.executable, "-m", *COMMAND]
    tests = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    print(tests.stdout)
    rows = [
        {
            "what": name.removeprefix("test_").replace("_", " "),
            "examples": sum(map(int, _EXAMPLES.findall(output))),
            "result": outcome.lower(),
        }
        for name, output, outcome in _TEST.findall(tests.stdout)
    ]
    write_subject(RESULT, TITLE, TEXT, COLUMNS, f"python benchmarks/fuzzing.py --seconds {seconds}", rows)
    return tests.returncode


if __name__ == "__main__":
    sys.exit(main())
