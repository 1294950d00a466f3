"""Strategies over a slow cable: two hosts on this machine, joined at a chosen rate.

    sudo python benchmarks/slow_link.py hybrid     # hybrid and PowerSGD against ddp: 100 Mbit/s, one worker a host
    sudo python benchmarks/slow_link.py butterfly  # near first, far first, gloo's all-reduce: 400 Mbit/s, two a host
    sudo python benchmarks/slow_link.py lazy       # how much of the exchange lazy updates hide: 400 Mbit/s, two a host

Needs root (network namespaces, tc). The contestants take turns in each round; the figure is the median over the
rounds of the median step. Bytes are the ledger's, which test_kernel_counters.py holds against the kernel's.
"""

import argparse
import csv
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from hosts import TwoHosts, freeze

from leyden.trainer.core.checkpoints import checkpoint_io

COMMON = [
    "dataset=synthetic", "dataset.val_fraction=0", "trainer.max_epochs=1", "trainer.log_every_n_steps=2",
    "trainer.enable_progress_bar=false", "trainer.limit_val_batches=0", "trainer.limit_test_batches=0",
    "topology.nodes=2", "schedule=constant", "callbacks.checkpoint.every_n_epochs=1",
]  # fmt: skip


class Measured(NamedTuple):
    milliseconds: float
    """Median step."""
    megabytes: float
    """Sent a step by each host to the other."""
    exposed: float
    """Milliseconds a step in which a worker waited for the network."""
    weights: dict[str, torch.Tensor]


def measure(hosts: TwoHosts, folder: Path, *overrides: str) -> Measured:
    run_dir = freeze(folder, *COMMON, *overrides)
    summary = hosts.run(run_dir)
    with open(run_dir / "metrics.csv", newline="") as file:
        steps = [row for row in csv.DictReader(file) if row.get("time/total_ms")][1:]
    return Measured(
        statistics.median(float(row["time/total_ms"]) for row in steps),
        summary["communication"]["inter_node_bytes"] / 2e6 / summary["steps"],
        statistics.median(float(row["comm/exposed_ms"]) for row in steps),
        checkpoint_io.read(run_dir / "checkpoints" / "last.ckpt")["model"],
    )


def rounds(hosts: TwoHosts, count: int, contestants: dict[str, list[str]]) -> dict[str, list[Measured]]:
    """Every contestant once a round, in turns; prints its row."""
    results: dict[str, list[Measured]] = {name: [] for name in contestants}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            for name, overrides in contestants.items():
                result = measure(hosts, Path(folder) / f"{name.replace(' ', '-')}-{number}", *overrides)
                results[name].append(result)
                print(
                    f"round {number + 1}  {name:24s} {result.milliseconds:8.1f} ms a step  "
                    f"{result.megabytes:8.3f} MB a step and host  waited {result.exposed:8.1f} ms",
                    flush=True,
                )
    return results


def ratio(results: dict[str, list[Measured]], slow: str, fast: str) -> float:
    """Median over the rounds of one contestant's time by another's in the same round."""
    pairs = zip(results[slow], results[fast], strict=True)
    return statistics.median(one.milliseconds / other.milliseconds for one, other in pairs)


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[n].double() - other[n]).norm() / other[n].double().norm()) for n in one)


def hybrid(count: int) -> None:
    net = [
        "model=vgg_small", "model.stages=[[16],[32]]", "model.hidden=[1024,1024]", "model.dropout=0.5",
        "dataset.samples=640", "batch_size=32", "topology.devices_per_node=1", "optimizer.lr=0.01",
    ]  # fmt: skip
    contestants = {
        "ddp": [*net, "strategy=ddp"],
        "hybrid scheme a": [*net, "strategy=hybrid", "strategy.scheme=a"],
        "hybrid scheme b": [*net, "strategy=hybrid", "strategy.scheme=b", "strategy.update_period=null"],
        "hybrid scheme c": [*net, "strategy=hybrid", "strategy.scheme=c", "strategy.update_period=null"],
        "ddp powersgd rank 2": [*net, "strategy=ddp", "strategy.compression=powersgd", "strategy.powersgd_rank=2"],
        "ddp fp16": [*net, "strategy=ddp", "strategy.compression=fp16"],
    }
    with TwoHosts(100) as hosts:
        results = rounds(hosts, count, contestants)
    for name in list(contestants)[1:]:
        share = statistics.median(r.megabytes / d.megabytes for r, d in zip(results[name], results["ddp"], strict=True))
        print(f"{name:24s} {ratio(results, 'ddp', name):5.2f} times as fast as ddp, {100 * share:.2f} % of its bytes")
    for scheme in "abc":
        distance = apart(results[f"hybrid scheme {scheme}"][0].weights, results["ddp"][0].weights)
        print(f"weights of hybrid scheme {scheme} after the run, relative distance from ddp's: {distance:.1e}")


def butterfly(count: int) -> None:
    net = [
        "model=mlp", "model.hidden=[640,640]", "dataset.samples=320", "batch_size=16",
        "topology.devices_per_node=2", "optimizer.lr=0.01",
    ]  # fmt: skip
    eager = [*net, "strategy=butterfly", "strategy.lazy=false"]
    with TwoHosts(400) as hosts:
        results = rounds(
            hosts, count,
            {
                "near first": [*eager, "strategy.order=near_first"],
                "far first": [*eager, "strategy.order=far_first"],
                "ddp": [*net, "strategy=ddp"],
            },
        )  # fmt: skip
    print(f"far first takes {ratio(results, 'far first', 'near first'):.2f} times near first")
    print(f"near first takes {ratio(results, 'near first', 'ddp'):.2f} times gloo's all-reduce (ddp)")


def lazy(count: int) -> None:
    """With one bucket and eager updates nothing overlaps: what the cable adds then is the whole exchange."""
    net = [
        "model=vgg_small", "model.hidden=[1536,1024]", "dataset.samples=2400", "batch_size=200",
        "topology.devices_per_node=2", "optimizer.lr=0.01", "strategy=butterfly", "strategy.bucket_cap_mb=4",
    ]  # fmt: skip
    serial = [*net, "strategy.lazy=false", "strategy.bucket_cap_mb=1000"]
    contestants = {"serial": serial, "eager": [*net, "strategy.lazy=false"], "lazy": [*net, "strategy.lazy=true"]}
    hidden: dict[str, list[float]] = {"eager": [], "lazy": []}
    with TwoHosts() as hosts:
        for number in range(count):
            print("cable without limit")
            hosts.limit(None)
            computation = rounds(hosts, 1, {"serial": serial})["serial"][0].milliseconds
            print("400 Mbit/s")
            hosts.limit(400)
            slow = rounds(hosts, 1, contestants)
            exchange = slow["serial"][0].milliseconds - computation
            print(f"round {number + 1}: computation {computation:.0f} ms, exchange {exchange:.0f} ms")
            for name, found in hidden.items():
                found.append(1 - (slow[name][0].milliseconds - computation) / exchange)
    for name, found in hidden.items():
        print(f"{name} hides {100 * statistics.median(found):.0f} % of the exchange ({len(found)} rounds)")


SUBJECTS: dict[str, Callable[[int], None]] = {"hybrid": hybrid, "butterfly": butterfly, "lazy": lazy}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    SUBJECTS[options.subject](options.rounds)
