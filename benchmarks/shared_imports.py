"""How much longer a run of more workers takes to its end, and how long the start of a trial of a sweep: where each
process imports torch, and where one does so for all.

    python benchmarks/shared_imports.py     # about ten minutes on a quiet machine

The training takes a fraction of a second. The start of a trial, from its validation to its first optimizer step, is the
difference of two sweeps, divided by that of their trials, each of which ends after that step. Every line is the median
of interleaved starts; only ratios mean anything.
"""

import argparse
import random
import statistics
import sys
import tempfile
from pathlib import Path

from startup import FIRST_STEP, seconds

RUN = ["model=mlp", "model.hidden=[16]", "dataset.image_size=8", "trainer.max_epochs=1"]
FIRST = ["callbacks=none", "+callbacks.first._target_=first_step.FirstStep"]
TRIALS = {"forkserver": (4, 20), "spawn": (1, 4)}
"""Trials of the two sweeps whose difference counts."""


def sweep(trials: int, method: str) -> str:
    return f"sweep of {trials} trials to the first step, {method}"


def contestants() -> dict[str, list[str]]:
    """Overrides by what they run."""
    found = {"one run": list[str]()}
    for workers in (2, 4):
        for method in ("forkserver", "spawn"):
            ddp = ["strategy=ddp", f"topology.devices_per_node={workers}", f"topology.start_method={method}"]
            found[f"{workers} workers, {method}"] = ddp
    for method, sizes in TRIALS.items():
        for trials in sizes:
            words = ["-m", f"seed=range({trials})", f"topology.start_method={method}", *FIRST]
            found[sweep(trials, method)] = words
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in contestants()}
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "first_step.py").write_text(FIRST_STEP)
        for number in range(rounds):
            for contestant in random.sample(list(times), len(times)):
                folder = f"{number}-{contestant}".replace(" ", "_").replace(",", "")
                swept = "sweep" in contestant
                words = [*contestants()[contestant], *RUN, f"hydra.{'sweep' if swept else 'run'}.dir={folder}"]
                # trials that end in their first step are failed ones
                taken = seconds([sys.executable, "-m", "leyden", *words], Path(name), int(swept))
                times[contestant].append(taken)
    median = {contestant: statistics.median(values) for contestant, values in times.items()}
    print(f"{'':48}{'seconds':>8}{'ratio':>8}  to one run")
    for contestant, value in median.items():
        print(f"{contestant:48}{value:8.2f}{value / median['one run']:8.2f}")
    for method, (few, many) in TRIALS.items():
        start = (median[sweep(many, method)] - median[sweep(few, method)]) / (many - few)
        print(f"{'start of a trial, ' + method:48}{start:8.2f}{start / median['one run']:8.2f}")


if __name__ == "__main__":
    main()
