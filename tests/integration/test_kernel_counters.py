"""The ledger's bytes against the kernel's: what the network cards between two hosts have really sent."""

import json
from pathlib import Path

import pytest
from hosts import TwoHosts, available, freeze
from pipeline import on_host
from tables import thinned

from leyden.trainer.cli.main import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="needs root, `ip` and `tc`, for network namespaces"),
]

LONG = [
    "dataset=synthetic", "dataset.samples=1280", "dataset.image_shape=[3,16,16]", "dataset.val_fraction=0",
    "trainer.max_epochs=1", "trainer.log_every_n_steps=1000", "trainer.enable_progress_bar=false",
    "trainer.limit_val_batches=0", "trainer.limit_test_batches=0", "callbacks=none", "logger=none",
    "topology.nodes=2", "batch_size=128",
]  # fmt: skip
MLP = ["model=mlp", "model.hidden=[512,512]"]
VGG = ["model=vgg_small", "model.stages=[[16],[64]]", "model.hidden=[256]"]
CASES = {
    "ddp": [*MLP, "strategy=ddp", "topology.devices_per_node=1"],
    "ddp-fp16": [*MLP, "strategy=ddp", "strategy.compression=fp16", "topology.devices_per_node=1"],
    "ddp-powersgd": [*MLP, "strategy=ddp", "strategy.compression=powersgd", "strategy.powersgd_rank=32",
                     "topology.devices_per_node=1"],
    "ddp-4": [*MLP, "strategy=ddp", "topology.devices_per_node=2"],
    "butterfly-near": [*MLP, "strategy=butterfly", "strategy.order=near_first", "topology.devices_per_node=2"],
    "butterfly-far": [*MLP, "strategy=butterfly", "strategy.order=far_first", "topology.devices_per_node=2"],
    "hybrid-a": [*VGG, "strategy=hybrid", "strategy.scheme=a", "topology.devices_per_node=1"],
    "hybrid-b": [*VGG, "strategy=hybrid", "strategy.scheme=b", "topology.devices_per_node=1"],
    "hybrid-c": [*VGG, "strategy=hybrid", "strategy.scheme=c", "topology.devices_per_node=1"],
    "spatial": ["model=local_net", "strategy=spatial", "topology.devices_per_node=2"],
    "fsdp": [*MLP, "strategy=fsdp", "topology.devices_per_node=1"],
    "easgd": [*MLP, "strategy=easgd", "strategy.tau=5", "topology.devices_per_node=1"],
    "easgd-server": [*MLP, "strategy=easgd", "strategy.form=server", "strategy.execution.servers=1", "strategy.tau=5",
                     "topology.devices_per_node=1"],
    "asgd-2-servers": [*MLP, "strategy=asgd", "strategy.n_push=2", "strategy.n_fetch=2",
                       "topology.devices_per_node=1"],
    "local-sgd": [*MLP, "strategy=local_sgd", "strategy.h=5", "topology.devices_per_node=1"],
    "hsdp": [*MLP, "strategy=hsdp", "topology.devices_per_node=2"],
}  # fmt: skip


COUNTER = """
import time
from pathlib import Path

class KernelCounter:
    '''Writes down what the network cards of this host have sent when training begins and when it has ended.'''

    def on_fit_start(self, state):
        self._note(state, "start")

    def on_fit_end(self, state):
        self._note(state, "end")

    def _note(self, state, when):
        state.fabric.barrier()
        time.sleep(0.3)  # until the last of it has left
        cards = [line.split(":") for line in Path("/proc/self/net/dev").read_text().splitlines()[2:]]
        sent = sum(int(numbers.split()[8]) for name, numbers in cards if name.strip() != "lo")
        (state.run_dir / f"{when}-{state.fabric.global_rank}").write_text(str(sent))
        state.fabric.barrier()
"""


IN_CI = ["ddp", "butterfly-near", "spatial", "asgd-2-servers"]
"""One for each way to send: collectives, pairs, halos, servers."""


@pytest.mark.machine
@pytest.mark.parametrize("case", thinned(CASES, in_ci=IN_CI))
def test_the_ledger_is_what_the_kernel_counts(tmp_path: Path, case: str) -> None:
    (tmp_path / "kernel_counter.py").write_text(COUNTER)
    counter = ["+callbacks.counter._target_=kernel_counter.KernelCounter", f"+python_path=[{tmp_path}]"]
    run_dir = freeze(tmp_path / "run", *LONG, *CASES[case], *counter)
    with TwoHosts() as hosts:
        summary = hosts.run(run_dir)
    first_of_each_host = (0, summary["world_size"] // 2)
    start, end = (
        sum(int((run_dir / f"{when}-{rank}").read_text()) for rank in first_of_each_host) for when in ("start", "end")
    )
    assert end - start == pytest.approx(summary["communication"]["inter_node_bytes"], rel=0.03)


@pytest.mark.machine
def test_hops_are_what_the_kernel_counts(tmp_path: Path) -> None:
    """The models of a pipeline, and next to nothing else, cross the cable."""
    sweep = ["-m", "hydra/launcher=pipeline", "hydra.launcher.scheduler=ring", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    short = [word for word in LONG if "max_epochs" not in word]
    trials = ["trainer.max_epochs=2", "optimizer.lr=0.1,0.01", "topology.launcher=node"]
    assert main([*sweep, *short, *MLP, *trials]) == 0
    pipeline = tmp_path / "sweep" / "pipeline"
    with TwoHosts() as hosts:
        before = sum(hosts.sent())
        agents = [on_host(hosts, host, pipeline) for host in range(2)]
        outputs = [agent.communicate(timeout=300)[0] for agent in agents]
        sent = sum(hosts.sent()) - before
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    told = json.loads((pipeline / "summary.json").read_text())
    assert told["hops"] + told["copies"] >= 2 * (2 * 2 - 1)
    assert sent == pytest.approx(sum(told["hop_bytes"].values()) + told["copy_bytes"], rel=0.03)
