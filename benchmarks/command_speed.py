"""Seconds of what a user waits for at the prompt: a completion in each shell, and the comparison of 2,000 runs.

    python benchmarks/command_speed.py --write     # a minute

A completion is a shell that starts, reads the function and completes `leyden trainer.max_`; what the shell itself needs
to start is a line of its own. The runs are copies of one, with other seeds and learning rates. Median of 9 and of 5.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measurement import ROOT, write_subject

RUNS = 2000
COMPLETE = {
    "bash": ["bash", "--norc", "-c", "source ./bash; COMP_LINE='leyden trainer.max_' COMP_POINT=19; _leyden"],
    "zsh": [
        "zsh",
        "-f",
        "-c",
        "compdef() {}; compadd() {}; source ./zsh; words=(leyden trainer.max_) CURRENT=2; _leyden",
    ],
    "fish": ["fish", "-N", "-c", "source ./fish; complete -C 'leyden trainer.max_'"],
}
EMPTY = {"bash": ["bash", "--norc", "-c", ""], "zsh": ["zsh", "-f", "-c", ""], "fish": ["fish", "-N", "-c", ""]}


def seconds(command: list[str], folder: Path, times: int) -> float:
    taken: list[float] = []
    for _ in range(times + 1):
        begin = time.perf_counter()
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=False)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])


def completions(folder: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for shell in filter(shutil.which, COMPLETE):
        with open(folder / shell, "w") as file:
            subprocess.run([sys.executable, "-m", "leyden", "completion", shell], stdout=file, check=True)
        rows.append({"what": f"{shell}, started alone", "seconds": seconds(EMPTY[shell], folder, 9)})
        rows.append({"what": f"{shell}, started, one completion", "seconds": seconds(COMPLETE[shell], folder, 9)})
    return rows


def comparison(folder: Path) -> dict[str, object]:
    words = ["model=mlp", "trainer.max_epochs=1", "seed=1", "hydra.run.dir=many/1"]
    subprocess.run([sys.executable, "-m", "leyden", *words], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    first = folder / "many" / "1"
    config, summary = (first / "config.yaml").read_text(), json.loads((first / "summary.json").read_text())
    for number in range(2, RUNS + 1):
        run = folder / "many" / str(number)
        run.mkdir()
        varied = config.replace("seed: 1", f"seed: {number}").replace("lr: 0.02", f"lr: {0.001 * (number % 50 + 1)}")
        (run / "config.yaml").write_text(varied)
        summary["metrics"]["val/acc"] = number / RUNS
        (run / "summary.json").write_text(json.dumps(summary, indent=2))
    command = [sys.executable, "-m", "leyden", "compare", "many"]
    return {"what": f"`leyden compare` of {RUNS:,} runs", "seconds": seconds(command, folder, 5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/command_speed.json")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        rows = [*completions(folder), comparison(folder)]
    for row in rows:
        print(f"{row['what']:40}{row['seconds']:8.3f}")
    if write:
        text = "Wall time of whole commands, from the start of the process to its end."
        write_subject(
            ROOT / "benchmarks" / "results" / "command_speed.json", "Completion and comparison", text,
            {"seconds": ["seconds", ".3f"]}, "python benchmarks/command_speed.py --write", rows,
        )  # fmt: skip


if __name__ == "__main__":
    main()
