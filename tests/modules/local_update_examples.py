"""Callbacks that inspect a run of a local-update strategy."""

import json
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import torch
from traffic_examples import traffic_of_run

from leyden.trainer.core.state import RunState
from leyden.trainer.strategies.local_update.distributed_executor import DistributedExecutor
from leyden.trainer.strategies.local_update.simulated_executor import SimulatedExecutor


class Traffic:
    """Writes the strategy's transfers into a file in the run folder."""

    def on_fit_end(self, state: RunState) -> None:
        if state.fabric.is_global_zero:
            transfers = [vars(transfer) for transfer in traffic_of_run(state)]
            (state.run_dir / "traffic.json").write_text(json.dumps(transfers))


_HELD_BACK_S = 10.0
"""On a busy machine worker 0 may have drawn all tickets up to the next synchronization, for which the others wait."""


class FirstFetch:
    """Writes the first fetch of any worker but worker 0 (flat) into a file in the run folder.

    After the warm start worker 0 pushes nothing until then: the others are to fetch its result alone.
    """

    def on_fit_start(self, state: RunState) -> None:
        executor: Any = state.fabric.strategy.executor  # pyright: ignore[reportAttributeAccessIssue]
        path = state.run_dir / "first_fetch.pt"
        distributed = isinstance(executor, DistributedExecutor)
        holder: Any = executor.client if distributed else executor.simulation.shard
        pull, push = holder.pull, holder.push
        given = state.config.strategy.arguments
        of_warm_start = -(-given["warm_start_steps"] // given["n_push"])

        def recorded(*worker: int) -> torch.Tensor:
            values = pull(*worker)
            number = worker[0] if isinstance(executor, SimulatedExecutor) else executor.worker
            if number != 0 and not path.exists():
                torch.save(values.clone(), path)
            return values

        def held_back(*arguments: Any) -> Any:
            nonlocal of_warm_start
            of_warm_start -= 1
            end = monotonic() + _HELD_BACK_S
            while of_warm_start < 0 and not path.exists() and monotonic() < end:
                sleep(0.01)
            return push(*arguments)

        holder.pull = recorded
        if distributed and executor.worker == 0:
            holder.push = held_back


class LateFirstWorker:
    """Lets the other workers draw all tickets of the first work range before worker 0 draws one."""

    def on_fit_start(self, state: RunState) -> None:
        source: Any = state.contract.ticket_source
        numbers = source.numbers

        def late() -> Iterator[int]:
            sleep(1.5)
            yield from numbers()

        if state.fabric.is_global_zero:
            source.numbers = late
