"""strategy=ddp: its switches, and compression of what it sends."""

import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from pool import Failed, Pool
from remedied import shown, works
from runs import FEW, HERE, OWN_TASK, TINY, Freeze, apart, cut_back, distance, metrics, summary, weights
from tables import thinned
from torch import Tensor, nn

from leyden.trainer.cli.main import main
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.core.checkpoints.sharded_checkpoint import CheckpointShards
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints
from leyden.trainer.strategies.ddp.powersgd import PowerSGD, mean_errors
from leyden.trainer.strategies.ddp.powersgd_hook import WholeBackward

Pools = Callable[[int], Pool]

LOOKING = [HERE, "+callbacks.witness._target_=ddp_examples.Witness"]
SHORT = [*TINY, "trainer.max_steps=5", "batch_size=48", "trainer.log_every_n_steps=1", *FEW]
DOUBLE = "trainer.precision=64-true"
POWERSGD = ["strategy=ddp", "strategy.compression=powersgd"]
MANY_BUCKETS = "strategy.bucket_cap_mb=0.001"
LENET = ["model=lenet5", "dataset.image_size=16", "augment=none"]
RUNS = int(os.environ.get("LEYDEN_POWERSGD_RUNS", "10"))
CAMPAIGN = pytest.mark.campaign


def devices(workers: int, nodes: int = 1) -> list[str]:
    return [f"topology.nodes={nodes}", f"topology.devices_per_node={workers // nodes}"]


def witnesses(run_dir: Path, workers: int) -> list[dict[str, Any]]:
    return [json.loads((run_dir / f"witness{rank}.json").read_text()) for rank in range(workers)]


# --- powersgd ends, and is what its equations say


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "runs"), [(2, 1), pytest.param(2, RUNS, marks=CAMPAIGN), pytest.param(4, RUNS, marks=CAMPAIGN)]
)
def test_powersgd_finishes_with_many_buckets(freeze: Freeze, pools: Pools, workers: int, runs: int) -> None:
    options = [*LENET, "trainer.max_steps=12", "batch_size=24", "callbacks=none", MANY_BUCKETS, *FEW]
    for run in range(runs):
        run_dir = freeze(f"run{run}", *options, *POWERSGD, *devices(workers), *LOOKING)
        pools(workers).run(run_dir)
        assert summary(run_dir)["steps"] == 12
        each = [seen["weights"] for seen in witnesses(run_dir, workers)]
        assert all(seen == each[0] for seen in each)


@pytest.mark.slow
def test_gradients_of_low_rank_pass_unchanged(freeze: Freeze, pools: Pools) -> None:
    # one sample a worker: the mean gradient of a fully connected layer has rank 2
    options = [*SHORT, DOUBLE, "model.hidden=[64,32]", "batch_size=2", *devices(2)]
    plain, low_rank = freeze("plain", *options, "strategy=ddp"), freeze("low", *options, *POWERSGD, MANY_BUCKETS)
    too_low = freeze("too_low", *options, *POWERSGD, "strategy.powersgd_rank=1")
    for run_dir in (plain, low_rank, too_low):
        pools(2).run(run_dir)
    assert apart(low_rank, plain) <= 1e-10
    assert apart(too_low, plain) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="whole", marks=CAMPAIGN),
        pytest.param(["trainer.accumulate_grad_batches=3"], id="in parts", marks=CAMPAIGN),
    ],
)
def test_powersgd_depends_on_the_mean_over_workers_alone(freeze: Freeze, pools: Pools, more: list[str]) -> None:
    options = [*LENET, *SHORT[3:], DOUBLE, *POWERSGD, MANY_BUCKETS]
    two = freeze("two", *options, *devices(2))
    four = freeze("four", *options, *devices(4), *more)
    pools(2).run(two)
    pools(4).run(four)
    assert apart(four, two) <= 1e-9


@pytest.mark.slow
def test_what_is_not_sent_is_kept(freeze: Freeze, pools: Pools) -> None:
    look = [HERE, "+callbacks.feedback._target_=ddp_examples.Feedback"]
    run_dir = freeze("run", *LENET, *FEW, DOUBLE, "trainer.max_steps=8", "batch_size=48", *POWERSGD, *devices(2), *look)
    pools(2).run(run_dir)
    found = json.loads((run_dir / "feedback.json").read_text())
    assert max(found["apart"].values()) <= 1e-10
    owed = {name for name, share in found["owed"].items() if share > 1e-3}
    assert len(owed) >= 4, "nothing was compressed: the identity says nothing"
    assert not any("bias" in name for name in owed)


@pytest.mark.slow
def test_channels_last_changes_nothing(freeze: Freeze, pools: Pools) -> None:
    options = [*LENET, *SHORT[3:], DOUBLE, *POWERSGD, *devices(2)]
    usual, last = freeze("usual", *options), freeze("last", *options, "trainer.channels_last=true")
    pools(2).run(usual)
    pools(2).run(last)
    assert apart(last, usual) <= 1e-8


@pytest.mark.campaign
def test_rank_two_learns_digits(freeze: Freeze, pools: Pools) -> None:
    options = [*LENET, "trainer.max_epochs=8", "trainer.limit_test_batches=1", *devices(2)]
    plain, low_rank = freeze("plain", *options, "strategy=ddp"), freeze("low", *options, *POWERSGD)
    pools(2).run(plain)
    pools(2).run(low_rank)
    assert metrics(plain)["val/acc"] > 0.9
    assert metrics(low_rank)["val/acc"] > metrics(plain)["val/acc"] - 0.04
    sent = [summary(run_dir)["communication"]["bytes"] for run_dir in (low_rank, plain)]
    assert sent[0] < 0.12 * sent[1]


def test_class_alone() -> None:
    """One worker: the applied update is the best that its basis can do, and vectors pass."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"weight": (30, 4, 5), "bias": (30,), "small": (3, 3), "scalar": ()}
    drawn = {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}
    powersgd = PowerSGD(shapes, rank=2)
    messages: list[int] = []

    def mean(message: Tensor) -> None:
        messages.append(message.numel())

    assert powersgd.compressed == ["weight"]
    matrix = drawn["weight"].view(30, 20)
    gradients: dict[str, Tensor] = {}
    for _ in range(300):  # of one matrix, warm start makes power iterations; the error is taken away
        powersgd.load({}, powersgd.factors)
        gradients = {name: gradient.clone() for name, gradient in drawn.items()}
        powersgd.average(gradients, mean)
    assert (messages[0], messages[1]) == powersgd.message_elements == (2 * 30 + 30 + 9 + 1, 2 * 20)
    for name in ("bias", "small", "scalar"):
        assert torch.equal(gradients[name], drawn[name])
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    best = left[:, :2] * values[:2] @ right[:2]
    assert float((gradients["weight"].view(30, 20) - best).norm() / best.norm()) < 1e-6


def test_error_of_another_rank_is_sent_with_the_next_gradient() -> None:
    first, more = PowerSGD({"w": (8, 8)}, rank=1), PowerSGD({"w": (8, 8)}, rank=5)
    drawn = torch.randn(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradient = {"w": drawn.clone()}
    first.average(gradient, lambda message: None)
    more.load(first.errors, first.factors)
    assert not more.compressed
    rest = {"w": torch.zeros_like(drawn)}
    more.average(rest, lambda message: None)
    assert torch.allclose(gradient["w"] + rest["w"], drawn, rtol=0, atol=1e-12)
    more.average(again := {"w": drawn.clone()}, lambda message: None)
    assert torch.equal(again["w"], drawn), "sent once"


def test_lost_directions_come_back() -> None:
    powersgd = PowerSGD({"w": (12, 12)}, rank=2)
    powersgd.average({"w": torch.zeros(12, 12)}, lambda message: None)
    drawn = torch.randn(12, 2, generator=torch.Generator().manual_seed(0)) @ torch.randn(2, 12)
    gradient = {"w": drawn}
    for _ in range(12):
        gradient = {"w": drawn.clone()}
        powersgd.average(gradient, lambda message: None)
    assert float((gradient["w"] - drawn).norm() / drawn.norm()) < 1e-4


def test_mean_of_errors() -> None:
    found = mean_errors([{"w": torch.full((2, 2), value)} for value in (1.0, 2.0, 6.0)])
    assert torch.equal(found["w"], torch.full((2, 2), 3.0))


# --- what is sent


CLUSTERS = [(2, 1, "32-true"), (2, 2, "64-true"), (4, 1, "64-true"), (4, 2, "32-true")]
SENT_BY = ("none", "bf16", "fp16", "powersgd")
LEDGERS = [(compression, *cluster) for compression, cluster in product(SENT_BY, CLUSTERS)]
EACH_ONCE = [(compression, *cluster) for compression, cluster in zip(SENT_BY, CLUSTERS, strict=True)]
"""Each compression and each cluster."""


@pytest.mark.slow
@pytest.mark.parametrize(("compression", "workers", "nodes", "precision"), thinned(LEDGERS, in_ci=EACH_ONCE))
def test_ledger_is_the_formula(
    freeze: Freeze, pools: Pools, compression: str, workers: int, nodes: int, precision: str
) -> None:
    run_dir = freeze("run", *SHORT, "strategy=ddp", f"strategy.compression={compression}", MANY_BUCKETS,
                     f"trainer.precision={precision}", *devices(workers, nodes), *LOOKING)  # fmt: skip
    pools(workers).run(run_dir)
    sent, seen = summary(run_dir)["communication"], witnesses(run_dir, workers)
    size = 8 if precision == "64-true" else 4
    parameters = 64 * 16 + 16 + 16 * 10 + 10
    low_rank = 2 * (16 + 64) + 16 + 2 * (10 + 16) + 10
    payload = {"none": parameters * size, "fp16": parameters * 2, "bf16": parameters * 2, "powersgd": low_rank * size}
    expected = 2 * (workers - 1) / workers * payload[compression]
    assert sent["bytes_a_step_and_worker"] == expected
    assert sum(transfer["bytes"] for transfer in seen[0]["traffic"]) == expected
    leaving = expected * nodes / workers if nodes > 1 else 0
    assert sent["inter_node_bytes_a_step_and_worker"] == leaving
    assert sum(transfer["inter_node_bytes"] for transfer in seen[0]["traffic"]) == leaving
    a_step = sum(transfer["messages"] for transfer in seen[0]["traffic"])
    assert seen[0]["messages"] == 5 * a_step, "the first step's buckets are those of the others"
    assert all(other["weights"] == seen[0]["weights"] for other in seen)


@pytest.mark.slow
def test_powersgd_starts_when_it_is_told(freeze: Freeze, pools: Pools) -> None:
    options = [*SHORT, "strategy=ddp", *devices(2)]
    late = freeze("late", *options, "strategy.compression=powersgd", "strategy.powersgd_start_step=3")
    never = freeze("never", *options, "strategy.compression=powersgd", "strategy.powersgd_start_step=5")
    plain = freeze("plain", *options)
    for run_dir in (late, never, plain):
        pools(2).run(run_dir)
    assert summary(late)["communication"]["bytes"] == 2 * 4 * (3 * 1210 + 2 * 238)
    assert apart(never, plain) == 0.0
    assert apart(late, plain) > 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compression", "tolerance", "precision"),
    [
        ("fp16", 1e-3, "bf16-mixed"),
        ("bf16", 2e-2, "64-true"),
        pytest.param("fp16", 1e-3, "32-true", marks=CAMPAIGN),
        pytest.param("fp16", 1e-3, "64-true", marks=CAMPAIGN),
        pytest.param("bf16", 2e-2, "32-true", marks=CAMPAIGN),
        pytest.param("bf16", 2e-2, "bf16-mixed", marks=CAMPAIGN),
    ],
)
def test_half_precision_rounds_and_no_more(
    freeze: Freeze, pools: Pools, compression: str, tolerance: float, precision: str
) -> None:
    options = [*LENET, *SHORT[3:], f"trainer.precision={precision}", "strategy=ddp", *devices(2)]
    plain, half = freeze("plain", *options), freeze("half", *options, f"strategy.compression={compression}")
    pools(2).run(plain)
    pools(2).run(half)
    assert 1e-7 < apart(half, plain) <= tolerance
    sent = [summary(run_dir)["communication"]["bytes"] for run_dir in (plain, half)]
    assert sent[0] / sent[1] == (4 if precision == "64-true" else 2)


@pytest.mark.slow
def test_large_gradients_are_divided_before_they_are_rounded(freeze: Freeze, pools: Pools) -> None:
    # four workers' gradients of 2**15 each: their sum is beyond fp16, their mean is not
    example = ["task._target_=ddp_examples.Steep", *OWN_TASK, "~model", "schedule=constant",
               "optimizer.lr=0.0001", "optimizer.momentum=0.0", "optimizer.weight_decay=0.0"]  # fmt: skip
    options = [
        "dataset.image_size=8",
        "batch_size=48",
        *example,
        "trainer.max_steps=1",
        "strategy=ddp",
        "strategy.compression=fp16",
        *devices(4),
    ]
    run_dir = freeze("run", *options, *LOOKING)
    pools(4).run(run_dir)
    bias = weights(run_dir)["bias"]
    assert float(bias) == pytest.approx(-(2.0**15) * 1e-4)


# --- resume


def resumable(*options: str) -> list[str]:
    return [*LENET, *FEW, "trainer.max_steps=8", "batch_size=48", "trainer.log_every_n_steps=1",
            "callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=100", *options]  # fmt: skip


def resume(run_dir: Path, pools: Pools, workers: int, **changed: Any) -> str:
    changed = {"topology.devices_per_node": workers, **{k.replace("__", "."): v for k, v in changed.items()}}
    (run_dir / "resume.yaml").write_text(json.dumps([{"changed": changed}]))
    return pools(workers).run(run_dir, "resume")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=CAMPAIGN)])
def test_resumed_powersgd_is_bitwise_the_unbroken_run(
    freeze: Freeze, pools: Pools, tmp_path: Path, workers: int
) -> None:
    options = resumable(*POWERSGD, *devices(workers), MANY_BUCKETS, "strategy.powersgd_start_step=2")
    whole = freeze("whole", *options)
    pools(workers).run(whole)
    for step in (1, 5):
        cut = cut_back(whole, tmp_path / f"cut{step}", step)
        assert f"step {step}" in resume(cut, pools, workers)
        assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(cut).items())
        ours, theirs = errors(cut, 8, workers), errors(whole, 8, workers)
        assert ours[0], "no error was saved"
        assert all(torch.equal(mine[n], other[n]) for mine, other in zip(ours, theirs, strict=True) for n in other)
        assert all(not torch.equal(ours[0][n], ours[1][n]) for n in ours[0]), "each worker has its own"


def errors(run_dir: Path, step: int, workers: int) -> list[dict[str, Tensor]]:
    shards = CheckpointShards(checkpoints.path_of(run_dir, step), workers)
    return [shards.own(worker)["powersgd"]["errors"] for worker in range(workers)]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 4), pytest.param(4, 2, marks=CAMPAIGN)])
def test_another_number_of_workers_keeps_the_mean_error(
    freeze: Freeze, pools: Pools, tmp_path: Path, before: int, after: int
) -> None:
    whole = freeze("whole", *resumable(DOUBLE, *POWERSGD, *devices(before)))
    pools(before).run(whole)
    cut = cut_back(whole, tmp_path / "cut", 5)
    assert f"each of {after} workers starts with the mean of {before} errors" in resume(cut, pools, after)
    assert summary(cut)["world_size"] == after
    assert apart(cut, whole) <= 1e-9
    mean, then = mean_errors(errors(cut, 8, after)), mean_errors(errors(whole, 8, before))
    assert distance(mean, then) <= 1e-6


@pytest.mark.slow
def test_resume_under_another_compression_or_strategy_says_so(freeze: Freeze, pools: Pools, tmp_path: Path) -> None:
    def strategy(**arguments: Any) -> dict[str, Any]:
        return {"_target_": "leyden.trainer.strategies.ddp.DDP", **arguments}

    low_rank = freeze("low", *resumable(*POWERSGD, *devices(2)))
    plain = freeze("plain", *resumable("strategy=ddp", *devices(2)))
    pools(2).run(low_rank)
    pools(2).run(plain)

    from_plain = cut_back(plain, tmp_path / "from_plain", 4)
    printed = resume(from_plain, pools, 2, strategy=strategy(compression="powersgd"))
    assert "errors start at zero" in printed
    assert 0 < apart(from_plain, plain) < 0.5

    from_low = cut_back(low_rank, tmp_path / "from_low", 4)
    assert "compression=fp16: the errors that powersgd has saved are dropped" in resume(
        from_low, pools, 2, strategy=strategy(compression="fp16")
    )
    assert checkpoint_io.read(checkpoints.path_of(from_low, 8))["shards"] == 0

    other_rank = cut_back(low_rank, tmp_path / "other_rank", 4)
    resume(other_rank, pools, 2, strategy=strategy(compression="powersgd", powersgd_rank=3))
    assert 0 < apart(other_rank, low_rank) < 0.5

    alone = cut_back(low_rank, tmp_path / "alone", 4)
    single = {"_target_": "leyden.trainer.strategies.single.Single"}
    (alone / "resume.yaml").write_text(json.dumps([{"changed": {"topology.devices_per_node": 1, "strategy": single}}]))
    assert start(alone, "resume") == 0
    assert summary(alone)["world_size"] == 1
    assert "what powersgd has saved for each worker is dropped" in (alone / "run.log").read_text()


# --- DDP's own switches


SWITCHES = {
    "bucket_cap_mb": ("0.002", "bucket_bytes_cap", 2097),
    "static_graph": ("true", "static_graph", True),
    "gradient_as_bucket_view": ("false", "gradient_as_bucket_view", False),
    "find_unused_parameters": ("true", "find_unused_parameters", True),
}
REFUSED = [("static_graph", "none", 2), ("static_graph", "bf16", 2), ("static_graph", "powersgd", 2),
           ("find_unused_parameters", "powersgd", 1), ("find_unused_parameters", "powersgd", 2)]  # fmt: skip
SWITCHED = [("bucket_cap_mb", "powersgd", 1), ("gradient_as_bucket_view", "bf16", 2), ("static_graph", "none", 1)]
"""Each compression, in one part and in two."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("switch", "compression", "parts"),
    thinned(
        (case for case in product(SWITCHES, ("none", "bf16", "powersgd"), (1, 2)) if case not in REFUSED),
        in_ci=SWITCHED,
    ),
)
def test_switches_arrive_and_change_no_result(
    freeze: Freeze, pools: Pools, switch: str, compression: str, parts: int
) -> None:
    value, name, wanted = SWITCHES[switch]
    options = [*SHORT, DOUBLE, f"trainer.accumulate_grad_batches={parts}", "strategy=ddp", *devices(2), *LOOKING]
    options.append(f"strategy.compression={compression}")
    usual, switched = freeze("usual", *options), freeze("switched", *options, f"strategy.{switch}={value}")
    pools(2).run(usual)
    pools(2).run(switched)
    default, seen = witnesses(usual, 2)[0], witnesses(switched, 2)[0]
    assert seen[name] == wanted != default[name]
    assert seen["weights"] == default["weights"]
    # a step sends once, in however many parts it is computed
    sent = [summary(run_dir)["communication"]["bytes_a_step_and_worker"] for run_dir in (usual, switched)]
    assert sent == [sum(transfer["bytes"] for transfer in seen["traffic"])] * 2


UNUSED = ["model=mlp", "~model.hidden", "~model.dropout", "model._target_=ddp_examples.WithUnused",
          "batch_size=48", "dataset.image_size=8", "trainer.max_steps=4", "strategy=ddp", *devices(2), *FEW,
          HERE]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("cap", ["0.0001", pytest.param("25", marks=CAMPAIGN)])
def test_an_unused_layer_is_named(freeze: Freeze, pools: Pools, cap: str) -> None:
    run_dir = freeze("run", *UNUSED, f"strategy.bucket_cap_mb={cap}")
    with pytest.raises(Failed, match=r"2 parameters got no gradient .*spare.weight, .*spare.bias.*find_unused_param"):
        pools(2).run(run_dir)
    assert not checkpoints.saved_checkpoints(run_dir)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(["strategy.find_unused_parameters=true"], marks=CAMPAIGN),
        ["strategy.find_unused_parameters=true", "+model.alternating=true"],
        ["strategy.find_unused_parameters=true", "strategy.compression=bf16"],
        ["strategy.static_graph=true", "strategy.compression=powersgd"],
    ],
    ids=lambda more: " ".join(more),
)
def test_an_unused_layer_is_allowed_where_it_is_looked_for(freeze: Freeze, pools: Pools, more: list[str]) -> None:
    run_dir = freeze("run", *UNUSED, *more)
    pools(2).run(run_dir)
    if "compression" not in more[-1]:
        model = [option for option in more if "model" in option]
        one = freeze("one", *UNUSED, "strategy=single", "topology.devices_per_node=1", *model)
        start(one)
        assert apart(run_dir, one) <= 1e-5
    assert summary(run_dir)["steps"] == 4


# --- what is refused


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("strategy.compression=powersdg",
         ["strategy.compression = powersdg", "must be one of none, fp16, bf16, powersgd", "did you mean powersgd?",
          "try: strategy.compression=powersgd"]),
        ("strategy.compression=8bit", ["must be one of none, fp16, bf16, powersgd", "try: strategy.compression=none"]),
        ("strategy.compression=null", ["strategy.compression = null", "must be text"]),
        ("strategy.compression=powersgd strategy.powersgd_rank=0",
         ["strategy.powersgd_rank = 0", "must be at least 1", "try: strategy.powersgd_rank=1"]),
        ("strategy.compression=powersgd strategy.powersgd_rank=1.5", ["must be a whole number"]),
        ("strategy.powersgd_start_step=-1", ["strategy.powersgd_start_step = -1", "must be at least 0"]),
        ("strategy.bucket_cap_mb=0", ["strategy.bucket_cap_mb = 0", "must be greater than 0"]),
        ("strategy.compression=powersgd trainer.precision=bf16-true",
         ["trainer.precision = bf16-true", "8 significant bits", "1/256", "try: trainer.precision=bf16-mixed"]),
        ("strategy.compression=powersgd strategy.find_unused_parameters=true",
         ["strategy.find_unused_parameters = true", "sent and thrown away", "strategy.static_graph=true"]),
        ("strategy.static_graph=true trainer.accumulate_grad_batches=2",
         ["strategy.static_graph = true", "2 parts", "try: strategy.static_graph=false"]),
        ("strategy.compresion=fp16", ["strategy.compresion = fp16", "did you mean compression?"]),
    ],
)  # fmt: skip
def test_refused_before_anything_starts(
    command: str, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["strategy=ddp", "topology.devices_per_node=2", *command.split()]) == 2
    printed = capsys.readouterr()
    for part in told:
        assert part in printed.err.replace("\n      ", " "), printed.err
    assert "Traceback" not in printed.err
    assert not list(tmp_path.iterdir())
    for remedy in shown(printed.err):
        assert works(remedy, ["strategy=ddp", "topology.devices_per_node=2", *command.split()]), remedy


def test_powersgd_on_parameters_of_half_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"these are bfloat16, float32: strategy\.compression=none"):
        WholeBackward(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16()), rank=1)
