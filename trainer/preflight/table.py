"""Where the workers of an attempt tell each other what they found, before there is any process group."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from ..config import Config
from ..errors import Problem, Refused

_TIMEOUT = timedelta(minutes=30)
"""For workers that import slowly; one that has died ends the others through its agent."""

Judge = Callable[[list[dict[str, Any]]], Sequence[Problem]]


def worth_it(config: Config) -> bool:
    """Whether there are several workers that meet, in the store of an agent.

    Elastic workers come and go, and meet nobody.
    """
    return config.processes > 1 and not config.elastic and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def as_data(problem: Problem) -> dict[str, Any]:
    """As JSON can hold it."""
    return {name: value for name, value in asdict(problem).items() if value is not ...}


class Table:
    """All workers of an attempt; everybody must call each method, in the same order."""

    def __init__(self) -> None:
        from torch.distributed import PrefixStore, TCPStore

        self.rank = int(os.environ["RANK"])
        self.workers = int(os.environ["WORLD_SIZE"])
        self.node = int(os.environ["GROUP_RANK"])
        self.first_of_node = os.environ["LOCAL_RANK"] == "0"
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, timeout=_TIMEOUT)
        self._store = PrefixStore("leyden/preflight", store)

    def agree(self, topic: str, mine: dict[str, Any], judge: Judge, note: Callable[[], Any] = lambda: None) -> Any:
        """Everybody says something on a topic, the first worker judges it.

        Args:
            mine: what this worker has to say, as JSON can hold it.
            judge: gives the problems in what all have said, by rank.
            note: gives what the first worker wants everybody to know, once all have spoken and nothing is wrong.

        Returns:
            The note.

        Raises:
            Refused: there is a problem; the same on all workers.
        """
        self._store.set(f"{topic}/{self.rank}", json.dumps(mine))
        if self.rank == 0:
            keys = [f"{topic}/{rank}" for rank in range(self.workers)]
            self._store.wait(keys, _TIMEOUT)
            problems = judge([json.loads(said) for said in self._store.multi_get(keys)])
            answer = {"problems": [as_data(problem) for problem in problems], "note": None if problems else note()}
            self._store.set(topic, json.dumps(answer))
        answer = json.loads(self._store.get(topic))
        if answer["problems"]:
            raise Refused(*(Problem(**problem) for problem in answer["problems"]))
        return answer["note"]
