"""Successive halving and Hyperband: against the papers' tables, and what happens at a rung."""

import math
import random

import pytest

from leyden.trainer.hopping.early_stopping import (
    Bracket,
    halving_epochs,
    hyperband,
    hyperband_brackets,
    successive_halving,
)


def test_the_table_of_hyperband():
    """Li et al. 2018, algorithm 1 with R = 81 and eta = 3."""
    table = [[(rung.trials, rung.epochs) for rung in rungs] for rungs in hyperband_brackets(81, 3)]
    assert table == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]


@pytest.mark.parametrize(
    ("smallest", "largest", "eta", "epochs"),
    [(1, 81, 3, [1, 3, 9, 27, 81]), (2, 10, 2, [2, 4, 8, 10]), (5, 5, 3, [5]), (9, 5, 3, [5])],
)
def test_epochs_of_the_rungs(smallest: int, largest: int, eta: int, epochs: list[int]):
    assert halving_epochs(smallest, largest, eta) == epochs


def test_a_rung_is_decided_when_all_have_reported():
    halving = successive_halving(range(4), "max", eta=2, min_epochs=1, max_epochs=4)
    assert halving.report(0, 1, 0.5) == halving.report(2, 1, 0.9) == halving.report(3, 1, 0.5) == []
    assert [halving.holds(trial) for trial in range(4)] == [True, False, True, True]
    stopped = halving.report(1, 1, math.nan)
    assert [each.trial for each in stopped] == [3, 1], "ties by number; NaN is the worst"
    assert stopped[0].reason == "halving: 0.5 after 1 epoch is place 3 of 4; the best 2 go on"
    assert not any(halving.holds(trial) for trial in range(4))
    assert halving.report(0, 2, 0.6) == []
    assert [each.trial for each in halving.report(2, 2, 0.4)] == [2]
    assert halving.report(0, 3, 0.1) == halving.report(0, 4, 0.1) == []
    assert not halving.holds(0)


def test_a_failed_trial_takes_the_place_of_one_that_would_be_stopped():
    bracket = Bracket(range(4), [1, 2], "min", eta=2)
    for trial in range(3):
        assert bracket.report(trial, 1, float(trial)) == []
    assert [each.trial for each in bracket.remove(3)] == [2], "the last one missing has failed: the rung is decided"
    assert bracket.remove(0) == []
    alone = Bracket(range(4), [1, 2], "min", eta=2)
    for trial in (0, 1, 2):
        assert alone.remove(trial) == []
    assert alone.report(3, 1, math.nan) == [], "fewer than the rung keeps: none is stopped"


def test_reports_replayed_in_another_order_give_the_same():
    rng = random.Random(0)
    values = {trial: rng.random() for trial in range(27)}
    survivors = []
    for _ in range(3):
        halving = successive_halving(range(27), "max", eta=3, min_epochs=1, max_epochs=27)
        alive = list(values)
        for epochs in range(1, 28):
            rng.shuffle(alive)
            stopped = [each.trial for trial in alive for each in halving.report(trial, epochs, values[trial])]
            alive = [trial for trial in alive if trial not in stopped]
        survivors.append(alive)
    assert survivors == [[max(values, key=lambda trial: values[trial])]] * 3


def test_trials_are_distributed_over_the_brackets_in_proportion():
    halving = hyperband(range(143), "min", eta=3, max_epochs=81)
    assert [bracket.rungs[0].trials for bracket in halving.brackets] == [81, 34, 15, 8, 5]
    few = hyperband(range(10), "min", eta=3, max_epochs=9)
    assert sum(bracket.rungs[0].trials for bracket in few.brackets) == 10
    assert few.report(0, 1, 0.0) == []
