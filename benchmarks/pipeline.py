"""hydra/launcher=pipeline against what else two workers could do with eight models.

    python benchmarks/pipeline.py local [--rounds 3]     two workers on this machine
    python benchmarks/pipeline.py hosts [--rounds 1]     two hosts and a cable of 100 Mbit/s (as root)

`local`: the makespan of the pipeline (first step of any to the end of all) by
- alone: max(longest model, total / 2), each model being trained alone, one after the other, in one process;
- halves: two processes at once, each with all of the data and half of the models (longest first, to the less loaded);
- both busy: max(longest model, total / 2) by what the models took in the halves: two cores that share their memory
  are slower than one of them alone, whatever they train.
`hosts`: the whole sweep by the same sweep of DDP over both hosts, one trial after the other: as the user waits for it,
and without the starts of processes. One thread a worker everywhere.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from hosts import TwoHosts, freeze

MODELS = ("vgg_small", "easgd_cifar7", "lenet5", "mlp")
RATES = (0.02, 0.005)
COMMON = [
    "topology=cpu", "dataset=digits", "augment=none", "batch_size=64", "trainer.max_epochs=5",
    "trainer.enable_progress_bar=false", "optimizer.momentum=0.9",
]  # fmt: skip
TRIALS = [[f"model={model}", f"optimizer.lr={rate}"] for model in MODELS for rate in RATES]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["local", "hosts", "alone"])
    parser.add_argument("folders", nargs="*", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.what == "alone":
        train_alone(given.folders)
        return
    with tempfile.TemporaryDirectory() as folder:
        {"local": local, "hosts": hosts}[given.what](Path(folder), given.rounds)


def local(folder: Path, rounds: int) -> None:
    ratios: dict[str, list[float]] = {"alone": [], "both busy": [], "halves": []}
    for turn in range(rounds):
        place = folder / str(turn)
        alone = together([frozen(place / "alone")])[0]
        piped = swept(place / "piped", "topology.devices_per_node=2")
        longest_first = sorted(range(len(TRIALS)), key=lambda number: -alone[number])
        halves: list[list[int]] = [[], []]
        for number in longest_first:
            min(halves, key=lambda half: sum(alone[n] for n in half)).append(number)
        runs = frozen(place / "halves")
        began = together([[runs[number] for number in half] for half in halves])
        half = max(sum(seconds) for seconds in began)
        bounds = [bound(alone), bound([*began[0], *began[1]])]
        for name, seconds in zip(ratios, [*bounds, half], strict=True):
            ratios[name].append(piped["makespan_s"] / seconds)
        print(f"round {turn}: pipeline {piped['makespan_s']:.2f} s, bound {bounds[0]:.2f} s (longest {max(alone):.2f}, "
              f"all {sum(alone):.2f}), both busy {bounds[1]:.2f} s, halves {half:.2f} s; its own sub-epochs "
              f"{piped['bound_s']:.2f} s")  # fmt: skip
        print(f"  {overheads(place / 'piped')}")
    for name, values in ratios.items():
        print(f"pipeline / {name}: {median(values):.3f} ({', '.join(f'{value:.3f}' for value in values)})")


def bound(seconds: list[float]) -> float:
    """No schedule of two workers is shorter."""
    return max(max(seconds), sum(seconds) / 2)


def frozen(place: Path) -> list[Path]:
    """Run folders of the trials as one worker trains them, over two partitions."""
    return [freeze(place / str(n), *COMMON, "dataset.partitions=2", *own) for n, own in enumerate(TRIALS)]


def together(shares: list[list[Path]]) -> list[list[float]]:
    """Seconds of each run, the runs of a share one after the other in one process, the shares at once."""
    command = [sys.executable, __file__, "alone"]
    started = [
        subprocess.Popen([*command, *map(str, share)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                         env=ONE_THREAD)
        for share in shares
    ]  # fmt: skip
    for process in started:
        assert process.stdout is not None
        while process.stdout.readline() != "ready\n":
            assert process.poll() is None
    outputs = [process.stdin for process in started]
    for stream in outputs:
        assert stream is not None
        stream.write("go\n")
        stream.flush()
    return [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]


def train_alone(folders: list[Path]) -> None:
    """What a worker does with a run, without the start of a process; the first one warms it up."""
    from leyden.trainer.base.process import keep_freed_memory
    from leyden.trainer.base.signals import StopRequest
    from leyden.trainer.config.job import JobSpec
    from leyden.trainer.engine.train import prepare, train
    from leyden.trainer.entrypoints.worker import silence_libraries

    silence_libraries()
    keep_freed_memory()
    warm = freeze(folders[0].parent / f"warm-{os.getpid()}", *COMMON, *TRIALS[0], "trainer.max_steps=2")
    train(prepare(JobSpec.load(warm), StopRequest()))
    print("ready", flush=True)
    sys.stdin.readline()
    seconds = []
    for folder in folders:
        began = perf_counter()
        train(prepare(JobSpec.load(folder), StopRequest()))
        seconds.append(perf_counter() - began)
    print(f"\n{json.dumps(seconds)}")


def swept(place: Path, *words: str, launcher: str = "pipeline") -> dict[str, Any]:
    """The summary of a pipeline of all trials."""
    models, rates = ",".join(MODELS), ",".join(map(str, RATES))
    command = [sys.executable, "-m", "leyden", "-m", f"hydra/launcher={launcher}", f"hydra.sweep.dir={place}"]
    command += [*COMMON, f"model={models}", f"optimizer.lr={rates}", *words]
    done = subprocess.run(command, env=ONE_THREAD, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = place / "pipeline" / "summary.json"
    return json.loads(summary.read_text()) if summary.exists() else {}


def overheads(sweep: Path) -> str:
    """What a sub-epoch costs beyond its training, by model, and what lies between two."""
    with open(sweep / "pipeline" / "schedule.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    inside: dict[str, list[float]] = {model: [] for model in MODELS}
    for row in rows:
        if row["status"] == "left":
            model = MODELS[int(row["trial"]) // len(RATES)]
            inside[model].append(float(row["seconds"]) - float(row["training"]))
    between = []
    for worker in {row["worker"] for row in rows}:
        own = sorted((float(r["began"]), float(r["seconds"])) for r in rows if r["worker"] == worker)
        between += [b - a - s for (a, s), (b, _) in pairwise(own)]
    beyond = ", ".join(f"{model} {1e3 * median(seconds):.1f}" for model, seconds in inside.items())
    return (
        f"a sub-epoch beyond its training, ms: {beyond}; "
        f"from one to the next {1e3 * median(between):.1f} (largest {1e3 * max(between):.0f})"
    )


def hosts(folder: Path, rounds: int) -> None:
    for turn in range(rounds):
        with TwoHosts(100) as two:
            place = folder / str(turn)
            began = perf_counter()
            swept(place / "piped", "topology.launcher=node", "topology.nodes=2")
            started = [on_host(two, host, place / "piped" / "pipeline") for host in range(2)]
            outputs = [process.communicate()[0] for process in started]
            assert [process.returncode for process in started] == [0, 0], outputs
            piped = perf_counter() - began
            made = json.loads((place / "piped" / "pipeline" / "summary.json").read_text())
            waits, steps = 0.0, 0.0
            for number, own in enumerate(TRIALS):
                ddp = ["strategy=ddp", "topology.nodes=2", "topology.launcher=node", "dataset.partitions=2"]
                run = freeze(place / "ddp" / str(number), *COMMON, *own, *ddp)
                began = perf_counter()
                told = two.run(run)
                waits += perf_counter() - began
                steps += told["step_time"]["total"]
            print(f"pipeline: {piped:.1f} s, makespan {made['makespan_s']:.1f} s; {made['hops']} hops, "
                  f"{sum(made['hop_bytes'].values()) / 1e6:.1f} MB")  # fmt: skip
            print(f"ddp, one after the other: {waits:.1f} s, in steps {steps:.1f} s")
            print(f"ddp / pipeline: {waits / piped:.2f}; without starts {steps / made['makespan_s']:.2f}")


def on_host(two: TwoHosts, host: int, run_dir: Path) -> subprocess.Popen[str]:
    """That host's agent of a pipeline."""
    command = ["ip", "netns", "exec", two.names[host], sys.executable, "-m", "leyden", "node"]
    return subprocess.Popen(
        [*command, "--rendezvous", f"{two.addresses[0]}:29400", str(run_dir)], env=ONE_THREAD, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


if __name__ == "__main__":
    main()
