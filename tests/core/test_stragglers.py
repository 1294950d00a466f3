"""Workers that are slower than the others: they are named, those that wait for them are not."""

import logging
import random
from collections.abc import Callable
from statistics import median

import pytest
from pool import Pool
from runs import HERE, Freeze, rows, summary
from tables import thinned

from leyden.trainer.base.log import log
from leyden.trainer.core.stragglers import OwnTime, Stragglers

STEPS = 50


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(log, "propagate", True)
    caplog.set_level(logging.WARNING)
    return caplog


def intervals(found: Stragglers, rank: int, milliseconds: list[list[float]]) -> None:
    """Each row: the workers' own times a step in an interval."""
    for number, row in enumerate(milliseconds, 1):
        found.add([OwnTime(compute=STEPS * ms / 1e3) for ms in row], rank, STEPS, number * STEPS)


def test_it_names_itself_once_and_says_when_it_is_over(warnings: pytest.LogCaptureFixture) -> None:
    found = Stragglers(window_s=1.0)
    intervals(found, 2, [[20, 20, 40, 21]] * 4)
    assert found.found == [{"rank": 2, "ratio": 2.0, "step": 2 * STEPS}]
    assert [record.getMessage().partition(" on ")[0] for record in warnings.records] == ["rank 2"]
    assert "40.0 ms a step, 2.0 times the median of 4 workers (0.0 ms of it for data)" in warnings.text
    intervals(found, 2, [[40, 40, 40, 41]])
    assert warnings.records[-1].getMessage() == "rank 2 is no straggler any more: 1.0 times the median"
    assert len(warnings.records) == 2


def test_the_others_say_nothing(warnings: pytest.LogCaptureFixture) -> None:
    found = Stragglers(window_s=1.0)
    intervals(found, 0, [[20, 20, 40, 21]] * 4)
    assert len(found.found) == 1
    assert not warnings.records


def test_of_two_workers_the_slower_is_compared_with_the_other() -> None:
    found = Stragglers(window_s=1.0)
    intervals(found, 0, [[32, 20]] * 4)
    assert [each["rank"] for each in found.found] == [0]


@pytest.mark.parametrize("row", [[20, 20, 20, 28], [20, 28, 28, 28], [0, 0, 0, 0], [7]])
def test_no_straggler(row: list[float]) -> None:
    found = Stragglers(window_s=1.0)
    intervals(found, 0, [row] * 20)
    assert not found.found


def test_one_slow_window_is_not_enough() -> None:
    found = Stragglers(window_s=1.0)
    intervals(found, 0, [[20, 60], [20, 20]] * 10)
    assert not found.found


def test_short_intervals_are_added_up() -> None:
    """Workers that are slow in turns, none more often than another."""
    found = Stragglers(window_s=1.0)
    intervals(found, 0, [[6 if number % 4 == rank else 2 for rank in range(4)] for number in range(200)])
    assert found.found == []
    assert Stragglers().add([OwnTime(compute=2), OwnTime(data=6)], 0, 1, 1) == {
        "workers/slowest_rank": 1.0,
        "workers/slowest_ratio": 3.0,
        "workers/own_ms/0": 2000.0,
        "workers/own_ms/1": 6000.0,
    }
    assert len(Stragglers().add([OwnTime(compute=2)] * 17, 0, 1, 1)) == 2, "one by one only of few workers"


def test_of_noisy_runs() -> None:
    """With normal noise of 20 %: 99 of 100 runs with a worker 1.7 times as slow are found, and none of 100 without."""
    draw = random.Random(0)

    def named(factor: float) -> set[float]:
        found = Stragglers()
        rows = [[20 * draw.gauss(1, 0.2) for _ in range(8)] for _ in range(40)]
        intervals(found, 0, [[*row[:3], factor * row[3], *row[4:]] for row in rows])
        return {each["rank"] for each in found.found}

    assert sum(named(1.7) == {3} for _ in range(100)) >= 99
    assert sum(named(1.0) == set() for _ in range(100)) == 100


LOCKSTEP = {
    "ddp": ["strategy=ddp"],
    "butterfly": ["strategy=butterfly"],
    "fsdp": ["strategy=fsdp"],
    "local_sgd": ["strategy=local_sgd", "strategy.h=2"],
}


# of a machine that is busy with other things a worker may be slow indeed
@pytest.mark.slow
@pytest.mark.parametrize("slow_rank", [1, pytest.param(-1, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("strategy", thinned(LOCKSTEP, in_ci=["ddp", "local_sgd"]))
def test_real_workers(freeze: Freeze, pools: Callable[[int], Pool], strategy: str, slow_rank: int) -> None:
    slow = ["model=mlp", "model._target_=straggler_examples.SlowOnRank", f"+model.slow_rank={slow_rank}",
            "+model.seconds=0.004", "+callbacks.windows._target_=straggler_examples.ShortWindows",
            HERE]  # fmt: skip
    short = ["dataset.image_size=8", "model.hidden=[16]", "batch_size=32", "trainer.max_steps=20",
             "trainer.limit_val_batches=0", "trainer.limit_test_batches=0", "trainer.log_every_n_steps=5",
             "topology.devices_per_node=2"]  # fmt: skip
    run_dir = freeze("run", *LOCKSTEP[strategy], *slow, *short)
    pools(2).run(run_dir)
    warned = [line for line in (run_dir / "run.log").read_text().splitlines() if "is a straggler" in line]
    assert {each["rank"] for each in summary(run_dir)["stragglers"]} == ({1} if slow_rank == 1 else set())
    assert {"[rank 1] WARNING rank 1 on" in line for line in warned} == ({True} if slow_rank == 1 else set())
    if slow_rank == 1:
        logged = [row for row in rows(run_dir) if row.get("workers/slowest_ratio")]
        assert median(float(row["workers/slowest_rank"]) for row in logged) == 1
        assert median(float(row["workers/slowest_ratio"]) for row in logged) > 2
