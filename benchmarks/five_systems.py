"""The five systems: side by side over one emulated network, and their small twins.

    sudo python benchmarks/five_systems.py compare      # 5 minutes: the table and the picture of docs/systems/
    python benchmarks/five_systems.py twins             # 6 minutes: the small recipes of conf/experiment, whole, once

`compare`: every strategy trains the network of experiment=five_systems, from the same weights, on the digits, with one
worker and one thread on each of two hosts, joined at 200 Mbit/s (network namespaces, tc: needs root). All are
validated after each epoch; a time is the sum of the step times until then. The pipeline trains eight of it, from eight
seeds.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from five_systems_picture import draw
from hosts import TwoHosts, freeze
from measurement import ROOT, write_subject
from pipeline import ONE_THREAD, on_host

MBIT = 200
EPOCHS = 8
LATER = 12
"""Epochs that a strategy gets whose workers do not keep in step."""
TARGET = 0.97
MODELS = 8
STEPS = 18
"""Of an epoch: 1,150 digits by 64."""
COMMON = [
    "experiment=five_systems", "topology.devices_per_node=1", "callbacks=none", "trainer.enable_progress_bar=false",
    "trainer.log_every_n_steps=9",
]  # fmt: skip
OWN_PACE = [f"trainer.max_epochs={LATER}"]
PLAIN = ["optimizer.momentum=0", "optimizer.lr=0.2"]
"""As far a step as with momentum 0.9 and a tenth of this rate."""
EAMSGD = ["strategy=easgd", "strategy.form=server", "strategy.tau=10", "optimizer.nesterov=true"]
ASGD = ["strategy=asgd", "strategy.n_push=10", "strategy.n_fetch=10", "strategy.execution.servers=1"]
REFERENCE = "`ddp`: the reference"
MEASURED = {
    REFERENCE: ["strategy=ddp"],
    "Deep Image, data-parallel: `butterfly`, lazy": ["strategy=butterfly"],
    "Deep Image, hybrid: `hybrid`, scheme b": ["strategy=hybrid", "strategy.scheme=b"],
    "COTS HPC: `spatial`": ["strategy=spatial"],
    "NYU: `easgd`, all-reduce, tau=10": ["strategy=easgd", "strategy.tau=10", *OWN_PACE],
    "NYU: EAMSGD, servers, tau=10": [*EAMSGD, *OWN_PACE],
    "GPU A-SGD: `asgd`, n_sync=10": [*ASGD, *PLAIN, *OWN_PACE],
}
PIPELINE = "Multi-training: eight models by `hydra/launcher=pipeline`"
COLUMNS = {
    "time": [f"seconds of steps to {100 * TARGET:.0f} % of the validation images", "s"],
    "step": ["ms per step", "s"],
    "waiting": ["of them waiting for the network", "s"],
    "bytes": ["MB per step and worker", "s"],
    "eight": [f"seconds of steps for eight models, {EPOCHS} epochs each", "s"],
    "accuracy": ["best accuracy on the validation images", "s"],
}

FILE = ROOT / "benchmarks" / "results" / "five_systems.json"
TWINS_FILE = FILE.with_name("twins.json")
PICTURE = ROOT / "docs" / "images" / "five_systems.svg"
TITLE = "The five systems side by side"
TEXT = (
    f"One network with convolutions, untied filters and a fully connected head (`experiment=five_systems`, 1,535,946 "
    f"parameters), the same weights, the digits in batches of 64 ({STEPS} steps an epoch); two hosts with a worker of "
    f"one thread each, {MBIT} Mbit/s. One run each, {EPOCHS} epochs, {LATER} where workers do not keep in step; "
    "validated after each epoch, which is how fine the times to an accuracy are. On this page's "
    "network most parameters are in the head, and computation is short: other networks and rates give other orders. "
    "The pipeline's makespan holds validations and the building of models, the other seconds are those of steps."
)
TWINS_TITLE = "The five systems, small"
TWINS_TEXT = "Every small recipe of `conf/experiment/` run whole, once; seconds include the start of processes."
TWINS_COLUMNS = {"seconds": ["seconds", ".0f"], "figure": ["figure", "s"], "bytes": ["sent", "s"]}


class Result(NamedTuple):
    points: list[tuple[float, float]]
    """Seconds of steps, and the accuracy on the validation images then."""
    step: float
    """Seconds of a step."""
    waiting: float
    """Part of them in which a worker waited for the network."""
    megabytes: float
    """That a worker sent, or passed with servers, a step."""

    def until(self, accuracy: float) -> float | None:
        return next((seconds for seconds, reached in self.points if reached >= accuracy), None)

    @property
    def best(self) -> float:
        return max(reached for _, reached in self.points)


def rows_of(run_dir: Path) -> list[dict[str, str]]:
    with open(run_dir / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def result_of(run_dir: Path, summary: dict[str, Any]) -> Result:
    points, seconds, step = [], 0.0, 0
    for row in rows_of(run_dir):
        if row.get("time/total_ms"):
            seconds += (int(row["step"]) - step) * float(row["time/total_ms"]) / 1e3
            step = int(row["step"])
        if row.get("val/acc"):
            points.append((seconds, float(row["val/acc"])))
    times, steps, sent = summary["step_time"], summary["steps"], summary["communication"]
    return Result(
        points, times["total"] / steps, sent["exposed_ms_a_step"] / 1e3, sent["bytes_a_step_and_worker"] / 1e6
    )


def measured(hosts: TwoHosts, folder: Path) -> dict[str, Result]:
    results = {}
    for number, (name, strategy) in enumerate(MEASURED.items()):
        run_dir = freeze(folder / f"measured-{number}", *COMMON, f"trainer.max_epochs={EPOCHS}", "topology.nodes=2",
                         *strategy)  # fmt: skip
        results[name] = result_of(run_dir, hosts.run(run_dir))
        print(name, *results[name].points[-1], f"{1e3 * results[name].step:.0f} ms a step", flush=True)
    return results


def piped(hosts: TwoHosts, folder: Path) -> tuple[dict[str, Any], float]:
    """The summary of a pipeline of eight models, and the lowest of their accuracies."""
    sweep = folder / "piped"
    words = [*COMMON, "strategy=single", f"seed=range({MODELS})", f"trainer.max_epochs={EPOCHS}"]
    words += ["hydra/launcher=pipeline", "topology.nodes=2", "topology.launcher=node", f"hydra.sweep.dir={sweep}"]
    command = [sys.executable, "-m", "leyden", "-m", *words]
    done = subprocess.run(command, env=ONE_THREAD, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    agents = [on_host(hosts, host, sweep / "pipeline") for host in range(2)]
    outputs = [agent.communicate()[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    accuracies = [max(float(row["val/acc"]) for row in rows_of(sweep / str(number)) if row.get("val/acc"))
                  for number in range(MODELS)]  # fmt: skip
    return json.loads((sweep / "pipeline" / "summary.json").read_text()), min(accuracies)


def cells(name: str, result: Result) -> dict[str, str]:
    reached = result.until(TARGET)
    return {
        "what": name,
        "time": f"{reached:.1f}, measured" if reached is not None else "not reached, measured",
        "step": f"{1e3 * result.step:.0f}, measured",
        "waiting": f"{1e3 * result.waiting:.0f}, measured",
        "bytes": f"{result.megabytes:.2f}, measured",
        "eight": f"{MODELS * EPOCHS * STEPS * result.step:.0f}: eight times one, measured",
        "accuracy": f"{100 * result.best:.1f} %, measured",
    }


def compare() -> None:
    """The table and the picture."""
    with tempfile.TemporaryDirectory() as place, TwoHosts(MBIT) as hosts:
        results = measured(hosts, Path(place))
        pipeline, lowest = piped(hosts, Path(place))
    rows = [cells(name, result) for name, result in results.items()]
    rows.append(pipeline_row(pipeline, lowest))
    write_subject(FILE, TITLE, TEXT, COLUMNS, "python benchmarks/five_systems.py compare", rows)
    plain = {name.replace("`", ""): result for name, result in results.items()}
    bars = {name: MODELS * EPOCHS * STEPS * result.step for name, result in plain.items()}
    bars["Multi-training: a pipeline of eight"] = pipeline["makespan_s"]
    draw(PICTURE, {name: result.points for name, result in plain.items()}, bars, TARGET)


def pipeline_row(summary: dict[str, Any], lowest: float) -> dict[str, str]:
    makespan, steps = summary["makespan_s"], MODELS * EPOCHS * STEPS
    idle = makespan - sum(summary["busy_s"]) / len(summary["busy_s"])
    return {
        "what": PIPELINE,
        "step": f"{1e3 * makespan / steps:.0f}: makespan / all steps, measured",
        "waiting": f"{1e3 * idle / steps:.1f}: idle, measured",
        "bytes": f"{sum(summary['hop_bytes'].values()) / 1e6 / steps:.2f} by all workers, measured",
        "eight": f"**{makespan:.0f}**: the makespan, measured",
        "accuracy": f"{100 * lowest:.1f} % by the worst of the eight, measured",
    }


def twins() -> None:
    """Every small recipe, and what its header compares it with."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for number, (words, figure) in enumerate(TWINS.items()):
            folder = Path(place) / str(number)
            sweep = words.startswith("-m")
            command = [sys.executable, "-m", "leyden", *words.split(), "trainer.enable_progress_bar=false",
                       f"hydra.{'sweep' if sweep else 'run'}.dir={folder}"]  # fmt: skip
            began = perf_counter()
            done = subprocess.run(command, capture_output=True, text=True)
            seconds = perf_counter() - began
            assert done.returncode == 0, done.stdout + done.stderr
            summary = json.loads((folder / ("pipeline" if sweep else "") / "summary.json").read_text())
            rows.append({"what": f"`leyden {words}`", "seconds": seconds, "figure": figure(summary), **sent(summary)})
            print(rows[-1], flush=True)
    write_subject(TWINS_FILE, TWINS_TITLE, TWINS_TEXT, TWINS_COLUMNS,
                  "python benchmarks/five_systems.py twins", rows)  # fmt: skip


def sent(summary: dict[str, Any]) -> dict[str, str]:
    if "communication" not in summary:
        return {"bytes": f"{sum(summary['hop_bytes'].values()) / 1e6:.1f} MB in all, by {summary['hops']} hops"}
    return {"bytes": f"{summary['communication']['bytes_a_step_and_worker'] / 1e6:.3f} MB a step and worker"}


def test_accuracy(summary: dict[str, Any]) -> str:
    return f"{100 * summary['metrics']['test/acc']:.1f} % of the test images"


def unexplained(summary: dict[str, Any]) -> str:
    return f"{100 * summary['metrics']['test/unexplained']:.1f} % of the last stage's input unexplained"


def simulated_time(summary: dict[str, Any]) -> str:
    return f"{test_accuracy(summary)}; {summary['metrics']['local_update/simulated_seconds']:.1f} simulated seconds"


def makespan(summary: dict[str, Any]) -> str:
    return f"makespan {summary['makespan_s']:.0f} s; sub-epochs of {sum(summary['busy_s']):.0f} s in all"


QUICK = "batch_size=32 strategy.warm_start_steps=0 trainer.max_epochs=2"
TWINS = {
    "experiment=deep_image_dp32_small": test_accuracy,
    "experiment=deep_image_hybrid16_small": test_accuracy,
    "experiment=owt_alexnet8_small": test_accuracy,
    "experiment=nyu_easgd_small": test_accuracy,
    "experiment=nyu_easgd_small strategy.form=allreduce": test_accuracy,
    "experiment=cots_1b_small": unexplained,
    "experiment=cots_11b_small": unexplained,
    "experiment=gpu_asgd8_small": simulated_time,
    "experiment=gpu_asgd8_small strategy.warm_start_steps=0": simulated_time,
    f"experiment=gpu_asgd8_small {QUICK}": simulated_time,
    f"experiment=gpu_asgd8_small {QUICK} strategy.execution.delay=straggler": simulated_time,
    "-m experiment=multi_training_8x8_small": makespan,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=["compare", "twins"])
    {"compare": compare, "twins": twins}[parser.parse_args().subject]()
