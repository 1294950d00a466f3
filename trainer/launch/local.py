"""Several workers on this machine, under torch's elastic agent in a thread of the command's own process."""

import dataclasses
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ..config import Config
from ..report import last_good_checkpoint, mark_failed, read_summary
from ..signals import give_back, take_over
from ..topology import threads_per_worker
from .worker import EXIT_CODES, FAILURES, remove_unstarted

_AFTER_A_FAILURE_S = 4
"""What the others get to end by themselves when a worker has died; then they are killed."""


def launch(config: Config, run_dir: Path, verb: str, checkpoint: Path | None) -> int:
    """Start the workers, pass signals on to them, say who failed. Returns the exit code of `start`."""
    failures = Path(tempfile.mkdtemp(prefix="leyden-"))
    try:
        agent = Agent(config, failures, [str(run_dir), verb, str(checkpoint or "")])
        error = agent.run()
        if error is not None:
            return _failed(run_dir, verb, error, failures, agent)
        if verb == "eval":
            return 0
        return EXIT_CODES[read_summary(run_dir)["status"]]
    finally:
        shutil.rmtree(failures, ignore_errors=True)


class Agent:
    """The elastic agent in a thread, so that signals are ours: it would kill workers that are saving."""

    def __init__(self, config: Config, failures: Path, arguments: list[str]):
        self.config = config
        self.failures = failures
        self.arguments = arguments
        self.signals: list[signal.Signals] = []
        self.error: BaseException | None = None
        self._told: set[tuple[int, int]] = set()

    def run(self) -> BaseException | None:
        """Wait for the workers' end. Returns what went wrong."""
        kept = take_over(self._note)
        thread = threading.Thread(target=self._launch, name="elastic-agent")
        thread.start()
        try:
            while thread.is_alive():
                thread.join(0.1)
                self._pass_on()
        finally:
            give_back(kept)
        return self.error

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(signal.Signals(number))

    def _pass_on(self) -> None:
        """Each signal once to each worker that listens by now; a second Ctrl-C kills."""
        for count, received in enumerate(list(self.signals)):
            again = count > 0 and received is signal.SIGINT
            for file in self.failures.glob("*.pid"):
                pid = int(file.read_text() or 0)
                if pid and (pid, count) not in self._told:
                    self._told.add((pid, count))
                    _kill(pid, signal.SIGKILL if again else received)

    def _launch(self) -> None:
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        topology = self.config.topology
        os.environ.setdefault("OMP_NUM_THREADS", str(threads_per_worker(topology)))
        os.environ[FAILURES] = str(self.failures)
        os.environ["LEYDEN_AGENT"] = str(os.getpid())
        try:
            command = ["-m", "leyden.trainer.launch.worker", *self.arguments]
            elastic_launch(self._launch_config(), sys.executable)(*command)
        except BaseException as error:
            self.error = error

    def _launch_config(self) -> LaunchConfig:
        options: dict[str, Any] = {}
        if "shutdown_timeout" in {field.name for field in dataclasses.fields(LaunchConfig)}:
            options["shutdown_timeout"] = _AFTER_A_FAILURE_S
        return LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self.config.topology.devices_per_node,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=str(self.failures)),
            **options,
        )


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _failed(run_dir: Path, verb: str, error: BaseException, failures: Path, agent: Agent) -> int:
    """Say which worker is to blame, and why.

    Raises:
        ValueError: it was the user's mistake; what `train` had written is removed.
    """
    if not isinstance(error, ChildFailedError):
        raise error
    records = {int(path.stem): json.loads(path.read_text()) for path in failures.glob("*.json") if path.stem.isdigit()}
    rank, message, trace = blamed(error.failures, records)
    if records.get(rank, {}).get("users_mistake"):
        remove_unstarted(run_dir, verb)
        raise ValueError(message)
    if trace:
        print(trace, file=sys.stderr)
    print(f"rank {rank} failed: {message}\n{last_good_checkpoint(run_dir)}", file=sys.stderr)
    mark_failed(run_dir, message, rank)
    if agent.signals:
        return 130 if agent.signals[0] is signal.SIGINT else 143
    return 1


def blamed(exits: dict[int, ProcessFailure], records: dict[int, Any]) -> tuple[int, str, str]:
    """Rank, message and traceback of the worker that failed first.

    A worker that was killed leaves no record, and its peers fail of it; an abort is gloo's answer to a dead peer. Else
    the earliest record counts: a worker writes its own before its sockets close.
    """
    first = min(failure.timestamp for failure in exits.values())
    killed = [
        (rank, failure)
        for rank, failure in sorted(exits.items())
        if failure.exitcode < 0
        and failure.exitcode != -signal.SIGABRT
        and rank not in records
        # later ones were ended by the agent, because of the first
        and failure.timestamp - first < _AFTER_A_FAILURE_S / 2
    ]
    if killed:
        rank, failure = killed[0]
        return rank, f"killed by {signal.Signals(-failure.exitcode).name}", ""
    if records:
        rank = min(records, key=lambda number: records[number]["time"])
        return rank, records[rank]["message"], records[rank]["traceback"]
    rank, failure = min(exits.items(), key=lambda item: item[1].timestamp)
    return rank, f"exit code {failure.exitcode}", ""
