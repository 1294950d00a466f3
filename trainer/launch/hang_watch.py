"""An agent's eye on its processes: that something moves, here or on another node."""

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from ..config import Config
from .hang import Hang, Standing, Stillness, host, judged, keep_stack, look_every, state_of, too_long
from .peers import Peers
from .processes import Process
from .roles import Role

_ANSWER_S = 2.0
"""What processes get to write down what they are doing; then those that are behind are ended."""


class HangWatch:
    """Ends the workers that all others wait for, on whichever node they are.

    Args:
        config, run_dir: of the run.
        peers: the other nodes: as long as something moves there, nobody here hangs.
    """

    def __init__(self, config: Config, run_dir: Path, peers: Peers):
        self.config = config
        self.run_dir = run_dir
        self.peers = peers
        self._timeout = config.trainer.hang_timeout
        self._every = look_every(self._timeout) if self._timeout is not None else 0.0
        self._looked = self._found = time.monotonic()
        self._still: dict[Role, Stillness] = {}
        self._standings: Sequence[Standing] = []
        self._hang: Hang | None = None

    def look(self, processes: Sequence[Process]) -> None:
        """Called often; looks every now and then."""
        now = time.monotonic()
        since, timeout = now - self._looked, self._timeout
        if timeout is None or since < self._every:
            return
        self._looked = now
        if self._hang is not None:
            if now - self._found >= _ANSWER_S:
                self._end(processes)
            return
        standings = [self._standing(process, since) for process in processes if process.exit is None]
        workers = [standing for standing in standings if standing.role.kind == "worker"]
        stands_still = all(too_long(worker, timeout) for worker in workers)
        everybody = self.peers.standing_still(standings if stands_still else None)
        if everybody and any(standing.role.kind == "worker" for standing in everybody):
            self._hang, self._found = judged(everybody, self.config, self.run_dir), now
            self._standings = standings
            for process in processes:
                process.ask_for_stack()

    def _standing(self, process: Process, since: float) -> Standing:
        beat = process.beat()
        still = self._still.setdefault(process.role, Stillness(self._every)).look(beat, since)
        return Standing(process.role, host(), beat.step, beat.phase, still, state_of(process.pid))

    def _end(self, processes: Sequence[Process]) -> None:
        assert self._hang is not None
        hang = self._hang
        self.keep(processes)
        for process in processes:
            if process.role in hang.behind:
                process.fail(hang.text)

    def keep(self, processes: Sequence[Process]) -> None:
        """Put what the processes have answered into the run's folder, once, and look for the next hang."""
        if self._hang is None:
            return
        stacks = {process.role: process.stack() for process in processes}
        at = datetime.now().astimezone().isoformat(timespec="seconds")
        for standing in self._standings:
            keep_stack(self.run_dir, standing, stacks.get(standing.role, ""), at)
        self._hang, self._standings = None, []
        self._still.clear()
