"""Local-update strategies over a slow cable, on real images: time to an accuracy, bytes, a straggler.

    sudo python benchmarks/local_update.py accuracy PATH_OF_cifar10.zip    # 2 hosts, 100 Mbit/s, one worker a host
    sudo python benchmarks/local_update.py straggler                       # one of four workers slowed four times

Needs root (network namespaces, tc). `accuracy`: every strategy trains the same network on the same samples, 32 a worker
and step; each is validated every 30 steps, and a time is the sum of its step times until then. The target is what ddp
reaches with all its steps, less half a point; the others
may take half as many steps again to get there. `straggler`: samples a second over all workers, against the same run
without a straggler; computation is a sleep, so that workers do not compete for this machine's cores.
"""

import argparse
import csv
import math
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from hosts import TwoHosts, freeze

EVERY = 30
NET = ["model=vgg_small", "model.stages=[[32],[64],[128]]", "model.hidden=[1024]", "model.dropout=0"]
COMMON = [
    *NET, "dataset=cifar10", "batch_size=64", "topology.nodes=2", "topology.devices_per_node=1", "schedule=constant",
    "callbacks=none", "trainer.enable_progress_bar=false", f"trainer.limit_train_batches={EVERY}",
    "trainer.limit_test_batches=0", f"trainer.log_every_n_steps={EVERY}",
    "optimizer.lr=0.005", "optimizer.weight_decay=0",
]  # fmt: skip
SERVED = ["strategy=easgd", "strategy.form=server"]
CONTESTANTS = {
    "ddp": ["strategy=ddp"],
    "easgd tau=10": ["strategy=easgd", "strategy.tau=10"],
    "local_sgd h=10": ["strategy=local_sgd", "strategy.h=10"],
    "ddp powersgd rank 16": ["strategy=ddp", "strategy.compression=powersgd", "strategy.powersgd_rank=16"],
    "eamsgd tau=10": ["strategy=easgd", "strategy.tau=10", "optimizer.nesterov=true"],
    "DiLoCo h=10": ["strategy=local_sgd", "strategy.h=10", "strategy.outer_lr=0.7", "strategy.outer_momentum=0.9"],
    "easgd server tau=20": [*SERVED, "strategy.tau=20"],
    "asgd n=20": ["strategy=asgd", "strategy.n_push=20", "strategy.n_fetch=20", "optimizer.momentum=0"],
}
HEADLINES = ("ddp", "easgd tau=10", "local_sgd h=10")


class Point(NamedTuple):
    step: int
    seconds: float
    accuracy: float


class Result(NamedTuple):
    points: list[Point]
    bytes_a_step: float
    """That passed between the hosts, for each worker and step."""
    compute: float
    """Seconds a step without the time spent waiting for the network."""
    step: float

    def until(self, accuracy: float) -> float | None:
        """Seconds of training after which the validation accuracy was reached."""
        return next((point.seconds for point in self.points if point.accuracy >= accuracy), None)


def measured(hosts: TwoHosts, folder: Path, *overrides: str) -> Result:
    run_dir = freeze(folder, *COMMON, *overrides)
    before = sum(hosts.sent())
    summary = hosts.run(run_dir)
    passed = sum(hosts.sent()) - before
    points, seconds, step = [], 0.0, 0
    with open(run_dir / "metrics.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row.get("time/total_ms"):
                seconds += (int(row["step"]) - step) * float(row["time/total_ms"]) / 1e3
                step = int(row["step"])
            if row.get("val/acc"):
                points.append(Point(int(row["step"]), seconds, float(row["val/acc"])))
    times, steps = summary["step_time"], summary["steps"]
    return Result(points, passed / steps / 2, (times["total"] - times["communication"]) / steps, seconds / step)


def accuracy(root: str, epochs: int, seeds: int, headlines_only: bool) -> None:
    results: dict[str, list[Result]] = {name: [] for name in CONTESTANTS}
    with TwoHosts(100) as hosts, tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            for name in HEADLINES if seed or headlines_only else CONTESTANTS:
                passes = epochs if name == "ddp" else math.ceil(1.5 * epochs)
                options = [f"dataset.root={root}", f"seed={seed}", f"trainer.max_epochs={passes}", *CONTESTANTS[name]]
                result = measured(hosts, Path(folder) / f"{name.replace(' ', '-')}-{seed}", *options)
                results[name].append(result)
                _print_row(name, seed, result, results["ddp"][seed])
    for name in HEADLINES[1:]:
        ratios = [_ratio(r, d) for r, d in zip(results[name], results["ddp"], strict=True)]
        told = ", ".join("not reached" if r is None else f"{r:.2f}" for r in ratios)
        median = statistics.median(r or 0.0 for r in ratios)
        print(f"{name}: {median:.2f} times as fast as ddp to its accuracy less 0.5 points ({told})")


def _ratio(result: Result, ddp: Result) -> float | None:
    reached = result.until(ddp.points[-1].accuracy - 0.005)
    return None if reached is None else ddp.points[-1].seconds / reached


def _print_row(name: str, seed: int, result: Result, ddp: Result) -> None:
    at_equal_bytes = [p for p in ddp.points if p.step * ddp.bytes_a_step <= ddp.points[-1].step * result.bytes_a_step]
    ratio, bound = _ratio(result, ddp), ddp.step / ddp.compute
    same_samples = next(p.accuracy for p in reversed(result.points) if p.step <= ddp.points[-1].step)
    same_bytes = f"{100 * at_equal_bytes[-1].accuracy:.1f} %" if at_equal_bytes else "-"
    print(
        f"seed {seed}  {name:22s} {100 * same_samples:5.1f} %  {1e3 * result.step:6.0f} ms a step  "
        f"{result.bytes_a_step / 1e6:7.3f} MB a step and worker ({100 * result.bytes_a_step / ddp.bytes_a_step:5.1f} %)"
        f"  {'not reached' if ratio is None else f'{ratio:.2f} times as fast'}, bound {bound:.1f}"
        f"  (ddp with these bytes: {same_bytes})",
        flush=True,
    )  # fmt: skip


SLOWED = [
    "dataset=synthetic", "dataset.samples=6400", "dataset.val_fraction=0", "model=mlp", "model.hidden=[32]",
    "batch_size=64", "topology.nodes=2", "topology.devices_per_node=2", "trainer.max_epochs=1", "callbacks=none",
    "logger=none", "trainer.enable_progress_bar=false", "trainer.limit_test_batches=0",
    f"+python_path=[{Path(__file__).parent}]", "task._target_=sleeping_task.Sleeping",
]  # fmt: skip
RACED = {
    "ddp": ["strategy=ddp"],
    "easgd allreduce tau=10": ["strategy=easgd"],
    "easgd server tau=10": [*SERVED, "strategy.tau=10"],
    "asgd n=1": ["strategy=asgd"],
}


def straggler() -> None:
    with TwoHosts() as hosts, tempfile.TemporaryDirectory() as folder:
        for name, strategy in RACED.items():
            seconds: dict[float, float] = {}
            for slower in (1.0, 4.0):
                run_dir = freeze(Path(folder) / f"{name}{slower}", *SLOWED, *strategy, f"+task.slower={slower}")
                seconds[slower] = hosts.run(run_dir)["step_time"]["total"]
            left = seconds[1.0] / seconds[4.0]
            print(f"{name:24s} {100 * left:5.1f} % of its throughput is left; all but the straggler could give "
                  f"{100 * 3.25 / 4:.1f} %: {100 * left / (3.25 / 4):.0f} % of that", flush=True)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=["accuracy", "straggler"])
    parser.add_argument("root", nargs="?", help="cifar10.zip, or a folder with the set")
    parser.add_argument("--epochs", type=int, default=10, help=f"of {EVERY} steps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--headlines", action="store_true", help="ddp, easgd and local_sgd alone")
    options = parser.parse_args()
    if options.subject == "straggler":
        straggler()
    else:
        accuracy(options.root, options.epochs, options.seeds, options.headlines)
