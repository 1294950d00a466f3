"""What a strategy says that it sends: computed for any cluster in one process, and what a run's ledger counts."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from pool import Pool
from runs import Freeze, summary
from torch import nn
from traffic_examples import traffic_of

from leyden.trainer.config.schema import load
from leyden.trainer.core.traffic import Ledger, Workload
from leyden.trainer.core.transfers import Placement, ring

Pools = Callable[[int], Pool]
MLP = ["model=mlp", "model.hidden=[64,64]"]
CASES = {
    "ddp": [*MLP, "strategy=ddp", "strategy.bucket_cap_mb=0.01"],
    "ddp-fp16": [*MLP, "strategy=ddp", "strategy.compression=fp16"],
    "ddp-powersgd": [*MLP, "strategy=ddp", "strategy.compression=powersgd"],
    "butterfly": [*MLP, "strategy=butterfly", "strategy.bucket_cap_mb=0.01"],
    "fsdp": [*MLP, "strategy=fsdp", "strategy.min_parameters=1000"],
    "hybrid-a": [*MLP, "strategy=hybrid"],
    "hybrid-b": [*MLP, "strategy=hybrid", "strategy.scheme=b"],
    "spatial": ["model=local_net", "model.maps=[2]", "model.rf=3", "model.lcn=3", "strategy=spatial"],
    "easgd": [*MLP, "strategy=easgd", "strategy.tau=2"],
    "easgd-server": [*MLP, "strategy=easgd", "strategy.form=server", "strategy.tau=2"],
    "asgd": [*MLP, "strategy=asgd", "strategy.execution.servers=2", "strategy.n_push=2"],
    "local_sgd": [*MLP, "strategy=local_sgd", "strategy.h=2"],
}
SHORT = ["dataset.image_size=16", "batch_size=96", "trainer.max_epochs=10",
         "trainer.limit_val_batches=0", "trainer.limit_test_batches=0", "callbacks=none"]  # fmt: skip
HSDP = [*MLP, "strategy=hsdp", "strategy.min_parameters=1000"]
LARGE = ["topology.launcher=slurm", "topology.nodes=8", "topology.devices_per_node=8", "batch_size=4096"]


@pytest.mark.parametrize("case", [*CASES, "hsdp"])
def test_64_workers_need_no_process_group(freeze: Freeze, case: str) -> None:
    options = [*(HSDP if case == "hsdp" else CASES[case]), *SHORT, *LARGE]
    transfers = traffic_of(load(freeze("run", *options)), 64, (1, 16, 16))
    assert not dist.is_initialized()
    assert transfers
    for transfer in transfers:
        assert transfer.busiest_bytes >= transfer.bytes * (1 - 1e-12) > 0
        assert transfer.busiest_inter_node_bytes >= transfer.inter_node_bytes
        assert transfer.bytes >= transfer.inter_node_bytes
    assert {transfer.link for transfer in transfers} <= {"in node", "between nodes", "both"}
    if case == "hsdp":
        links = {transfer.what: set() for transfer in transfers}
        for transfer in transfers:
            links[transfer.what].add(transfer.link)
        assert links == {"parameters": {"in node"}, "gradients": {"in node", "between nodes"}}


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", CASES)
def test_a_ledger_counts_what_the_strategy_says(freeze: Freeze, pools: Pools, case: str) -> None:
    # 11 whole batches an epoch; servers get what is left at the end, so that they need more steps than that
    steps = 40 if case in ("easgd-server", "asgd") else 10
    two = ["topology.nodes=2", "topology.devices_per_node=1", f"trainer.max_steps={steps}"]
    run_dir = freeze("run", *CASES[case], *SHORT, *two)
    pools(2).run(run_dir)
    sent = summary(run_dir)["communication"]
    transfers = traffic_of(load(run_dir), 10, (1, 16, 16))
    servers = load(run_dir).servers > 0  # at the end every worker pushes what it has left
    a_step = sum(transfer.bytes / transfer.every for transfer in transfers)
    assert sent["bytes_a_step_and_worker"] == pytest.approx(a_step, rel=0.03 if servers else 1e-12)
    leaving = sum(transfer.inter_node_bytes / transfer.every for transfer in transfers)
    assert sent["inter_node_bytes_a_step_and_worker"] == pytest.approx(leaving, rel=0.03 if servers else 1e-12)


@pytest.mark.parametrize(("workers", "each"), [(2, 1), (3, 3), (8, 4), (6, 2)])
def test_the_ledgers_of_all_workers_add_up_to_the_transfer(workers: int, each: int) -> None:
    placement, sends = Placement(workers, each), ring(range(workers), 2, 1000.0)
    ledgers = [Ledger(rank, placement) for rank in range(workers)]
    for ledger in ledgers:
        ledger.count(sends)
    transfer = placement.transfer("gradients", "backward", sends)
    assert sum(ledger.bytes for ledger in ledgers) == pytest.approx(workers * transfer.bytes)
    assert sum(ledger.inter_node_bytes for ledger in ledgers) == pytest.approx(workers * transfer.inter_node_bytes)
    assert sum(ledger.messages for ledger in ledgers) == workers * transfer.messages
    assert max(ledger.bytes for ledger in ledgers) == transfer.busiest_bytes


def test_buckets_start_when_their_gradients_are_there(freeze: Freeze) -> None:
    transfers = traffic_of(load(freeze("run", *CASES["ddp"], *SHORT)), 10, (1, 16, 16))
    ready = [transfer.after_gradients for transfer in transfers]
    assert len(ready) == 2  # the first bucket is full after two layers
    assert ready == sorted(set(ready), key=lambda elements: elements or 0)
    assert ready[-1] == 256 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10


def test_the_last_layers_gradients_come_first() -> None:
    with torch.device("meta"):
        network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    workload = Workload(network, Placement(2, 2))
    assert [tuple(parameter.shape) for parameter in workload.parameters] == [(2,), (2, 3), (3,), (3, 4)]
