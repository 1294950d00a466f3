"""The ledger's bytes against the kernel's: what a network card between two hosts has really sent."""

from pathlib import Path

import pytest
from hosts import TwoHosts, available, freeze

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
    "easgd-server": [*MLP, "strategy=easgd", "strategy.form=server", "strategy.servers=1", "strategy.tau=5",
                     "topology.devices_per_node=1"],
    "asgd-2-servers": [*MLP, "strategy=asgd", "strategy.n_push=2", "strategy.n_fetch=2",
                       "topology.devices_per_node=1"],
    "local-sgd": [*MLP, "strategy=local_sgd", "strategy.h=5", "topology.devices_per_node=1"],
    "hsdp": [*MLP, "strategy=hsdp", "topology.devices_per_node=2"],
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_ledger_is_what_the_kernel_counts(tmp_path: Path, case: str) -> None:
    """Two runs, one of twice the steps: their difference is free of what only the start costs."""
    with TwoHosts() as hosts:
        counted, told = [], []
        for name, epochs in (("short", 1), ("long", 3)):
            before = hosts.sent()
            summary = hosts.run(freeze(tmp_path / name, *LONG, *CASES[case], f"trainer.max_epochs={epochs}"))
            counted.append(sum(hosts.sent()) - sum(before))
            told.append(summary["communication"]["inter_node_bytes"])
    by_own_clocks = case.startswith("asgd") or case.endswith("server")
    if not by_own_clocks:  # else which worker, near its server or far, makes how many steps is a race
        assert told[1] == pytest.approx(3 * told[0], rel=0.01)
    assert counted[1] - counted[0] == pytest.approx(told[1] - told[0], rel=0.03)
