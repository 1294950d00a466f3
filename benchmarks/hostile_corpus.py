"""The hostile corpus: what hostile files, configs and messages do to the commands that meet them, which is nothing.

    python benchmarks/hostile_corpus.py             # every entry by the real command, about half an hour on two cores
    python benchmarks/hostile_corpus.py --every 4   # every fourth entry of each door; nothing is written down
    python benchmarks/hostile_corpus.py --only 'a codec' 'cut off'     # entries by name; nothing is written down

Writes benchmarks/results/hostile_corpus.json, and exits with 1 where an entry was executed, or not refused by name.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measurement import ROOT, measurement

RESULT = ROOT / "benchmarks" / "results" / "hostile_corpus.json"
sys.path += [str(ROOT / "tests" / folder) for folder in ("support", "modules", "campaign")]

from corpus_outcomes import Corpus, Outcome, one_of_each_door  # noqa: E402
from measured_command import as_process  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="names of entries")
    options = parser.parse_args()
    some = [one for one in one_of_each_door(options.every) if not options.only or one.name in options.only]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for outcome in Corpus(Path(folder), as_process).outcomes(some):
            outcomes.append(outcome)
            said = "; ".join(outcome.faults) or f"refused, {outcome.cpu_s:.2f} s of CPU beyond"
            print(f"{outcome.entry.door}: {outcome.entry.name}: {said}", flush=True)
    if options.every == 1 and not options.only:
        RESULT.write_text(json.dumps(result_of(outcomes), indent=1) + "\n")
        print(f"written to {RESULT.relative_to(ROOT)}")
    print(f"{sum(not outcome.faults for outcome in outcomes)} of {len(outcomes)} were refused as they should be")
    return 1 if any(outcome.faults for outcome in outcomes) else 0


def result_of(outcomes: Sequence[Outcome]) -> dict[str, object]:
    doors = {door: [one for one in outcomes if one.entry.door == door] for door in {one.entry.door for one in outcomes}}
    rows = [
        _row("all", outcomes),
        *(_row(door, doors[door]) for door in sorted(doors, key=lambda door: -len(doors[door]))),
    ]
    text = (
        "Hostile files, configs and messages, each met by the real command in a process of its own. Right: nothing of "
        "it was executed, the exit code is the documented one, the message names it and is no traceback, and it took "
        "at most a second of CPU and 512 MB beyond the same command on harmless input."
    )
    columns = {
        "figure": ["right", "s"],
        "cpu": ["most CPU beyond, s", ".2f"],
        "memory": ["most memory beyond, MB", ".0f"],
    }
    run = measurement("python benchmarks/hostile_corpus.py", rows)
    return {"title": "Hostile input", "text": text, "columns": columns, "measurements": [run]}


def _row(what: str, outcomes: Sequence[Outcome]) -> dict[str, object]:
    right = sum(not outcome.faults for outcome in outcomes)
    return {
        "what": what,
        "figure": f"{right} of {len(outcomes)}",
        "cpu": max(0.0, *(round(outcome.cpu_s, 2) for outcome in outcomes)),
        "memory": max(0.0, *(round(outcome.memory_mb) for outcome in outcomes)),
    }


if __name__ == "__main__":
    sys.exit(main())
