"""Learning-rate schedules against torch's and values by hand; durations; resumed exactly."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import TINY, Freeze, cut_back, distance, metrics, rows, weights
from torch import nn
from torch.optim import lr_scheduler

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.base.log import log
from leyden.trainer.components.lr_schedules import Constant, MultiStep, OneCycle, Polynomial, WarmupCosine, steps_of
from leyden.trainer.components.plateau import Plateau
from leyden.trainer.compose.checks import check_classes
from leyden.trainer.compose.composer import Composer
from leyden.trainer.config.schema import load
from leyden.trainer.entrypoints.start import start


def rates(make: Any, steps: int = 20) -> list[float]:
    """Of two groups with rates 2 and 0.2, of which the second's are checked to be a tenth."""
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.2}], lr=2.0)
    schedule, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        assert optimizer.param_groups[1]["lr"] == pytest.approx(found[-1] / 10)
        optimizer.step()
        schedule.step()
    return found


def test_torchs_where_torch_has_the_shape() -> None:
    found = rates(lambda o: Polynomial(o, total_steps=20, power=3.0), 21)
    assert found == pytest.approx(rates(lambda o: lr_scheduler.PolynomialLR(o, 20, power=3.0), 21))
    found = rates(lambda o: Polynomial(o, total_steps=20, final_fraction=0.25), 21)
    assert found == pytest.approx(rates(lambda o: lr_scheduler.LinearLR(o, 1.0, 0.25, 20), 21))
    found = rates(lambda o: MultiStep(o, total_steps=20, steps_per_epoch=4, milestones=[2, 3.5], gamma=0.5))
    assert found == pytest.approx(rates(lambda o: lr_scheduler.MultiStepLR(o, [8, 14], gamma=0.5)))
    torchs = rates(lambda o: lr_scheduler.OneCycleLR(
        o, [2.0, 0.2], total_steps=21, pct_start=7 / 21, cycle_momentum=False), 20)  # fmt: skip
    assert rates(lambda o: OneCycle(o, total_steps=20, rise=0.3)) == pytest.approx(torchs), "which counts one step less"


def test_milestones_that_the_training_does_not_reach_are_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "propagate", True)
    with caplog.at_level(logging.INFO, log.name):
        rates(lambda o: MultiStep(o, total_steps=20, steps_per_epoch=4, milestones=[2, 4.5]))
        assert not caplog.messages
        rates(lambda o: MultiStep(o, total_steps=20, steps_per_epoch=4, milestones=[2, 5, 9.5]))
    assert set(caplog.messages) == {"schedule.milestones: 5, 9.5 not reached, the training has 5 epochs"}


def test_warm_up_and_cool_down_around_a_shape() -> None:
    given = {"total_steps": 20, "steps_per_epoch": 4, "warmup_steps": "1ep", "cooldown_steps": 0.25}
    found = rates(lambda o: WarmupCosine(o, **given, final_fraction=0.2), 21)
    assert found[:4] == pytest.approx([0.4, 0.8, 1.2, 1.6])
    assert found[4:15] == pytest.approx([2 * (0.2 + 0.8 * (1 + math.cos(math.pi * t / 11)) / 2) for t in range(11)])
    assert found[15:] == pytest.approx([0.4, 0.32, 0.24, 0.16, 0.08, 0.0], abs=1e-12)


def test_wsd() -> None:
    found = rates(lambda o: Constant(o, total_steps=16, warmup_steps=3, cooldown_steps=4, cooldown_shape="sqrt"), 17)
    assert found[:3] == pytest.approx([0.5, 1.0, 1.5])
    assert found[3:13] == [2.0] * 10
    assert found[13:] == pytest.approx([2 * (1 - math.sqrt(t / 4)) for t in (1, 2, 3, 4)], abs=1e-12)


@pytest.mark.parametrize("wrong", ["5 ep", -1, 1.5, "ep", True, 101, "11ep"])
def test_what_is_no_duration(wrong: Any) -> None:
    with pytest.raises(ValueError, match=f"warmup_steps={wrong}"):
        steps_of("warmup_steps", wrong, 100, 10)
    assert [steps_of("x", given, 100, 10) for given in (7, 0.07, "0.7ep", "10ep", 1.0)] == [7, 7, 7, 100, 100]


RUN = [*TINY, "trainer.precision=64-true", "trainer.log_every_n_steps=1", "batch_size=96"]
"""12 steps an epoch, 24 in all."""


def test_a_run_gives_steps_and_epochs(freeze: Freeze) -> None:
    run_dir = freeze("run", *RUN, "schedule=wsd", "schedule.warmup_steps=0.5ep", "schedule.cooldown_steps=0.5",
                     "schedule.cooldown_shape=linear", "optimizer.lr=0.01", "optimizer.lr_batch_size=48")  # fmt: skip
    assert start(run_dir) == 0
    found = [float(row["lr"]) for row in rows(run_dir) if row.get("lr")]
    assert len(found) == 24
    assert found[:6] == pytest.approx([0.02 * t / 7 for t in range(2, 8)]), "the rate after the step"
    assert found[6:12] == pytest.approx([0.02] * 6)
    assert found[12:] == pytest.approx([0.02 * (1 - t / 12) for t in range(1, 13)], abs=1e-12)


def test_a_plateau_falls_between_warm_up_and_cool_down() -> None:
    plain, ramped = (torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0) for _ in range(2))
    torchs = lr_scheduler.ReduceLROnPlateau(plain, patience=0, factor=0.5, min_lr=0.2)
    schedule = Plateau(ramped, 12, 3, warmup_steps=3, cooldown_steps=4, patience=0, factor=0.5, min_lr=0.2)
    assert schedule.ramp is not None
    found: list[float] = []
    for step in range(12):
        found.append(ramped.param_groups[0]["lr"])
        ramped.step()
        schedule.ramp.step()
        if step % 3 == 2:  # the end of an epoch: nothing improves
            torchs.step(1.0)
            schedule.step(1.0)
    rise, fall = [0.25, 0.5, 0.75], [1, 0.75, 0.5, 0.25]
    # after epochs 2, 3 and 4 the rate halves, and stays at min_lr
    assert found == pytest.approx([*rise, 1, 1, 1, 0.5, 0.5, 0.5 * fall[0], *(0.25 * part for part in fall[1:])])
    assert torchs.optimizer.param_groups[0]["lr"] == pytest.approx(schedule.ramp.base_lrs[0]) == 0.2
    assert "ramp" not in schedule.state_dict()
    alike = Plateau(plain, 12, patience=3)
    assert alike.ramp is None
    torchs_own = lr_scheduler.ReduceLROnPlateau(plain, patience=3)
    assert alike.state_dict() == torchs_own.state_dict()


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], [1.0] * 4), (["schedule.warmup_steps=1", "schedule.cooldown_steps=0.5"], [0.5, 1.0, 1.0, 0.5])],
)
def test_a_constant_rate_has_ramps_where_they_are_set(here: Path, words: list[str], expected: list[float]) -> None:
    schedule = Composer().run(["schedule=constant", *words]).config.schedule
    assert schedule is not None
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    made, found = Constant(optimizer, 4, 2, **schedule.arguments), []
    for _ in range(4):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made.step()
    assert found == expected


@pytest.mark.parametrize("options", [
    ["schedule=onecycle", "schedule.cooldown_steps=4"],
    ["schedule=plateau", "schedule.patience=0", "schedule.threshold=0.9"],
    ["schedule=plateau", "schedule.patience=0", "schedule.threshold=0.9", "schedule.warmup_steps=3",
     "schedule.cooldown_steps=1.5ep"],
], ids=["onecycle", "plateau", "plateau between ramps"])  # fmt: skip
def test_a_resumed_run_is_the_whole_one(freeze: Freeze, tmp_path: Path, options: list[str]) -> None:
    whole = freeze("whole", *RUN, *options, "trainer.max_epochs=4", "callbacks.checkpoint.keep_last=9")
    assert start(whole) == 0
    cut = cut_back(whole, tmp_path / "cut", 24)
    assert start(cut, "resume") == 0
    assert distance(weights(cut), weights(whole)) == 0.0
    assert metrics(cut)["lr"] == metrics(whole)["lr"] < 0.02


def test_a_longer_resumed_run_has_the_longer_schedule(freeze: Freeze) -> None:
    run_dir = freeze("run", *RUN, "schedule=linear")
    assert start(run_dir) == 0
    (run_dir / "resume.yaml").write_text("- changed: {trainer.max_epochs: 4}\n")
    assert start(run_dir, "resume") == 0
    assert [float(row["lr"]) for row in rows(run_dir) if row.get("lr")][25] == pytest.approx(0.02 * 22 / 48)


@pytest.mark.parametrize(
    ("options", "key"),
    [(["schedule.interval=epoch"], "schedule.interval"),
     (["schedule=onecycle", "schedule.frequency=2"], "schedule.frequency"),
     (["~optimizer.lr", "optimizer.lr_batch_size=32"], "optimizer.lr_batch_size")],
)  # fmt: skip
def test_what_is_refused_before_the_start(freeze: Freeze, options: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_classes(load(freeze("run", *TINY, *options)))
    assert [problem.key for problem in caught.value.problems] == [key]


def test_more_warm_up_and_cool_down_than_training_is_refused(freeze: Freeze) -> None:
    run_dir = freeze("run", *RUN, "schedule.warmup_steps=20", "schedule.cooldown_steps=0.5")
    with pytest.raises(ValueError, match="together more than the training's 24 steps"):
        start(run_dir)
    assert not run_dir.exists()
