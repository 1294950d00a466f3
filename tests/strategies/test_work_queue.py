"""Work queue of asynchronous workers."""

import pytest

from leyden.trainer.core.ticket_source import WorkRange
from leyden.trainer.strategies.param_server.work_queue import LockstepWorkQueue, WorkQueue


def begun(workers: int, rounds: int, first: int = 0, step: int = 0, warm_start: int = 0) -> WorkQueue:
    queue = WorkQueue(workers, warm_start)
    queue.begin(WorkRange(1, 0, first, rounds, step))
    return queue


def test_every_slice_once_in_any_order_of_workers() -> None:
    queue = begun(3, 4)
    order = [0, 0, 2, 1, 1, 1, 0, 2, 2, 2, 2, 1]
    assert [queue.draw(worker) for worker in order] == list(range(12))
    assert [queue.draw(worker) for worker in range(3)] == ["epoch"] * 3
    assert queue.rounds == 4


@pytest.mark.parametrize("reason", ["save", "stop"])
def test_workers_synchronize_between_two_rounds(reason: str) -> None:
    queue = begun(3, 4)
    assert [queue.draw(0), queue.draw(1)] == [0, 1]
    queue.request_sync(reason)  # pyright: ignore[reportArgumentType]
    assert queue.draw(0) == 2, "the round is finished"
    assert queue.draw(1) == queue.draw(0) == queue.draw(2) == reason
    assert queue.rounds == 1
    queue.begin(WorkRange(2, 0, 1, 4, 1))
    assert queue.draw(2) == 3
    queue.begin(WorkRange(2, 0, 1, 4, 1))  # another worker announces the same
    assert queue.draw(1) == 4


def test_a_stop_takes_precedence_over_a_checkpoint_and_an_epochs_end() -> None:
    queue = begun(2, 1)
    assert queue.draw(0) == 0
    queue.request_sync("stop")
    queue.request_sync("save")
    assert [queue.draw(1), queue.draw(0)] == [1, "stop"]


def test_a_stop_before_any_ticket() -> None:
    queue = begun(2, 3, first=1)
    queue.request_sync("stop")
    assert queue.draw(0) == "stop"
    assert queue.rounds == 1


def test_a_warm_start_is_worker_0s_alone_and_ends_at_a_synchronization() -> None:
    queue = begun(2, 4, warm_start=4)
    assert queue.draw(1) is None
    assert [queue.draw(0) for _ in range(4)] == [0, 1, 2, 3]
    assert queue.draw(0) == queue.draw(1) == "warm", "a ticket that is handed out is not trained yet"
    assert queue.rounds == 2
    queue.begin(WorkRange(2, 0, 2, 4, 2))
    assert [queue.draw(1), queue.draw(0)] == [4, 5]


def test_a_warm_start_over_epochs_and_resumptions() -> None:
    """Six slices: four of the first epoch, two of the second; a checkpoint at its end synchronizes already."""
    queue = begun(2, 2, warm_start=6)
    assert [queue.draw(0) for _ in range(5)] == [0, 1, 2, 3, "epoch"]
    queue.begin(WorkRange(2, 1, 0, 2, 2))
    assert queue.draw(1) is None
    assert [queue.draw(0), queue.draw(0)] == [0, 1]
    queue.request_sync("save")
    assert queue.draw(1) == "save"
    queue.begin(WorkRange(3, 1, 1, 2, 3))
    assert queue.draw(1) == 2
    resumed = begun(2, 4, first=1, step=1, warm_start=4)
    assert [resumed.draw(1), resumed.draw(0), resumed.draw(0), resumed.draw(0)] == [None, 2, 3, "warm"]
    assert begun(2, 4, step=2, warm_start=4).draw(1) == 0, "that was in an earlier epoch"


def test_tickets_of_a_warm_start_wait_for_worker_0() -> None:
    """Elastic workers; once the synchronization has begun, which it cannot join, another worker takes them."""
    queue = begun(2, 4, warm_start=4)
    assert [queue.draw(0, trained=0), queue.draw(0, trained=0)] == [0, 1]
    queue.drop_worker(0)
    assert queue.draw(1) is None
    assert [queue.draw(0, trained=number) for number in range(4)] == [0, 1, 2, 3]
    assert queue.draw(1) == "warm"
    queue.drop_worker(0)
    assert [queue.draw(1), queue.draw(1)] == [3, "warm"]


def test_tickets_of_a_lost_worker_are_handed_out_again() -> None:
    queue = begun(2, 2)
    assert [queue.draw(0), queue.draw(1), queue.draw(0)] == [0, 1, 2]
    queue.drop_worker(1)
    assert [queue.draw(0), queue.draw(0)] == [1, 3]
    queue.drop_worker(1)
    assert queue.draw(0) == "epoch"


def test_prefetched_tickets_of_a_lost_worker_are_handed_out_again() -> None:
    queue = begun(2, 4)
    assert [queue.draw(1, trained=0) for _ in range(3)] == [0, 1, 2]
    assert queue.draw(1, trained=2) == 3
    queue.drop_worker(1)
    assert [queue.draw(0), queue.draw(0), queue.draw(0)] == [2, 3, 4]
    assert queue.draw(1, trained=0) == 5, "it joins again"


def test_in_lockstep_each_slice_has_its_worker() -> None:
    queue = LockstepWorkQueue(2)
    queue.begin(WorkRange(1, 0, 0, 3, 0))
    assert [queue.draw(1), queue.draw(1), queue.draw(0)] == [1, 3, 0]
    queue.request_sync("save")
    assert queue.draw(1) == "save"
    assert [queue.draw(0), queue.draw(0)] == [2, "save"]
    assert queue.rounds == 2
