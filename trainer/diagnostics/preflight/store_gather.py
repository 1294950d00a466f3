"""Gathering of reports from all workers through the store, before any process group exists.

Why not a collective: the faults that it reports (a shared GPU, a missing interface) keep NCCL and Gloo from starting.
"""

import json
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from ...base.errors import Problem, Refused
from ...config.schema import Config

_TIMEOUT = timedelta(minutes=30)
"""Long, for workers that import slowly; a dead worker ends the others through its agent."""

FindProblems = Callable[[list[dict[str, Any]]], Sequence[Problem]]


def is_needed(config: Config) -> bool:
    """Whether there are several workers in lockstep, with the store of an agent.

    Elastic workers join and leave, so they gather nothing.
    """
    return (
        config.worker_processes > 1 and not config.elastic and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    )


class StoreGather:
    """All workers of a worker group; each must call every method, in the same order."""

    def __init__(self) -> None:
        from torch.distributed import PrefixStore, TCPStore

        self.rank = int(os.environ["RANK"])
        self.workers = int(os.environ["WORLD_SIZE"])
        self.node = int(os.environ["GROUP_RANK"])
        self.first_of_node = os.environ["LOCAL_RANK"] == "0"
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, timeout=_TIMEOUT)
        self._store = PrefixStore("leyden/preflight", store)

    def agree(
        self, topic: str, mine: dict[str, Any], find_problems: FindProblems, extra: Callable[[], Any] = lambda: None
    ) -> Any:
        """Gather reports on a topic; rank 0 looks for problems in them.

        Args:
            mine: this worker's report, as JSON values.
            find_problems: the problems in the reports of all workers, by rank.
            extra: a value from rank 0 for all workers, computed once all have reported without a problem.

        Returns:
            The value of `extra`.

        Raises:
            Refused: there is a problem; the same on all workers.
        """
        self._store.set(f"{topic}/{self.rank}", json.dumps(mine))
        if self.rank == 0:
            keys = [f"{topic}/{rank}" for rank in range(self.workers)]
            self._store.wait(keys, _TIMEOUT)
            problems = find_problems([json.loads(report) for report in self._store.multi_get(keys)])
            answer = {"problems": [problem.as_data() for problem in problems], "extra": None if problems else extra()}
            self._store.set(topic, json.dumps(answer))
        answer = json.loads(self._store.get(topic))
        if answer["problems"]:
            raise Refused(*(Problem(**problem) for problem in answer["problems"]))
        return answer["extra"]
