"""Execution options of a local-update strategy: processes with parameter servers, or a simulation in one process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Execution:
    """`strategy.execution` of easgd, asgd and local_sgd.

    Args:
        servers: parameter servers, each with an even shard; None: the topology's default, one a node.
        elastic: a worker that dies is restarted (topology.max_restarts) and joins the others, which go on through the
            servers alone, without a process group; a dead server restarts all workers.
        validate_workers: also validate each worker's own weights.
        record: the one server writes the order of events to RUN/events.csv.
        simulate: simulate the topology's workers in one process, in simulated time.
        delay: distribution of a simulated worker's time for a gradient: constant, exponential, straggler.
        delay_ms: its mean, in milliseconds of simulated time.
        slower: factor of the straggler.
        link_mbit_s: rate of the simulated link, in Mbit/s; None: transfers take no time.
        replay: events.csv of a recorded run, in place of delays.
    """

    servers: int | None = None
    elastic: bool = False
    validate_workers: bool = False
    record: bool = False
    simulate: bool = False
    delay: str = "constant"
    delay_ms: float = 100
    slower: float = 4
    link_mbit_s: float | None = None
    replay: str | None = None


PROCESSES = Execution()
"""The default: one process a worker, nothing simulated."""


def execution_of(arguments: Mapping[str, Any]) -> Execution:
    """The execution options among a strategy's validated arguments (config.strategy.arguments)."""
    return Execution(**arguments.get("execution", {}))
