"""The counter that workers by their own clocks draw from."""

import pytest

from leyden.trainer.servers.tickets import FixedTickets, Stretch, Tickets


def tickets(workers: int, rounds: int, first: int = 0, step: int = 0, alone: int = 0) -> Tickets:
    made = Tickets(workers, alone)
    made.begin(Stretch(1, 0, first, rounds, step))
    return made


def test_every_slice_once_whoever_comes() -> None:
    counter = tickets(3, 4)
    order = [0, 0, 2, 1, 1, 1, 0, 2, 2, 2, 2, 1]
    assert [counter.give(worker) for worker in order] == list(range(12))
    assert [counter.give(worker) for worker in range(3)] == ["epoch"] * 3
    assert counter.round == 4


@pytest.mark.parametrize("meeting", ["save", "stop"])
def test_a_meeting_is_between_two_rounds(meeting: str) -> None:
    counter = tickets(3, 4)
    assert [counter.give(0), counter.give(1)] == [0, 1]
    counter.ask(meeting)  # pyright: ignore[reportArgumentType]
    assert counter.give(0) == 2, "the round is finished"
    assert counter.give(1) == counter.give(0) == counter.give(2) == meeting
    assert counter.round == 1
    counter.begin(Stretch(2, 0, 1, 4, 1))
    assert counter.give(2) == 3
    counter.begin(Stretch(2, 0, 1, 4, 1))  # the others say the same
    assert counter.give(1) == 4


def test_a_stop_goes_before_a_checkpoint_and_an_epochs_end() -> None:
    counter = tickets(2, 1)
    assert counter.give(0) == 0
    counter.ask("stop")
    counter.ask("save")
    assert [counter.give(1), counter.give(0)] == [1, "stop"]


def test_a_stop_before_anything_was_taken() -> None:
    counter = tickets(2, 3, first=1)
    counter.ask("stop")
    assert counter.give(0) == "stop"
    assert counter.round == 1


def test_the_start_is_the_first_workers_alone_and_ends_at_a_meeting() -> None:
    counter = tickets(2, 4, alone=4)
    assert counter.give(1) is None
    assert [counter.give(0) for _ in range(4)] == [0, 1, 2, 3]
    assert counter.give(0) == counter.give(1) == "warm", "what is handed out is not trained yet"
    assert counter.round == 2
    counter.begin(Stretch(2, 0, 2, 4, 2))
    assert [counter.give(1), counter.give(0)] == [4, 5]


def test_a_start_alone_over_epochs_and_resumptions() -> None:
    """Six slices: four of the first epoch, two of the second; a checkpoint at its end is a meeting already."""
    counter = tickets(2, 2, alone=6)
    assert [counter.give(0) for _ in range(5)] == [0, 1, 2, 3, "epoch"]
    counter.begin(Stretch(2, 1, 0, 2, 2))
    assert counter.give(1) is None
    assert [counter.give(0), counter.give(0)] == [0, 1]
    counter.ask("save")
    assert counter.give(1) == "save"
    counter.begin(Stretch(3, 1, 1, 2, 3))
    assert counter.give(1) == 2
    resumed = tickets(2, 4, first=1, step=1, alone=4)
    assert [resumed.give(1), resumed.give(0), resumed.give(0), resumed.give(0)] == [None, 2, 3, "warm"]
    assert tickets(2, 4, step=2, alone=4).give(1) == 0, "that was in an earlier epoch"


def test_what_worker_0_had_in_its_start_alone_waits_for_it() -> None:
    """Elastic workers; at the meeting, which it cannot join before its end, another takes it."""
    counter = tickets(2, 4, alone=4)
    assert [counter.give(0, trained=0), counter.give(0, trained=0)] == [0, 1]
    counter.lose(0)
    assert counter.give(1) is None
    assert [counter.give(0, trained=number) for number in range(4)] == [0, 1, 2, 3]
    assert counter.give(1) == "warm"
    counter.lose(0)
    assert [counter.give(1), counter.give(1)] == [3, "warm"]


def test_what_a_lost_worker_had_is_given_again() -> None:
    counter = tickets(2, 2)
    assert [counter.give(0), counter.give(1), counter.give(0)] == [0, 1, 2]
    counter.lose(1)
    assert [counter.give(0), counter.give(0)] == [1, 3]
    counter.lose(1)
    assert counter.give(0) == "epoch"


def test_what_a_lost_worker_had_read_ahead_is_given_again() -> None:
    counter = tickets(2, 4)
    assert [counter.give(1, trained=0) for _ in range(3)] == [0, 1, 2]
    assert counter.give(1, trained=2) == 3
    counter.lose(1)
    assert [counter.give(0), counter.give(0), counter.give(0)] == [2, 3, 4]
    assert counter.give(1, trained=0) == 5, "it joins again"


def test_in_lockstep_a_slice_has_its_worker() -> None:
    counter = FixedTickets(2)
    counter.begin(Stretch(1, 0, 0, 3, 0))
    assert [counter.give(1), counter.give(1), counter.give(0)] == [1, 3, 0]
    counter.ask("save")
    assert counter.give(1) == "save"
    assert [counter.give(0), counter.give(0)] == [2, "save"]
    assert counter.round == 2
