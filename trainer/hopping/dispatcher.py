"""Dispatcher: assigns sub-epochs to workers and applies their results."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..config.schema import Pipeline
from .early_stopping import StoppedEarly, TrialEarlyStopping
from .live_table import LiveTable
from .messages import SnapshotCopied, SubEpochCompleted, SubEpochFailed, SubEpochStarted
from .placement import SnapshotPlacement
from .progress import HoppingProgress, SubEpoch
from .schedulers.estimates import Estimates
from .schedulers.simple import SCHEDULERS
from .terminal import Terminal
from .timeline import Timeline
from .trials import HoppingTrial, restore_position, snapshots_to_save
from .worker_handle import Assignment, WorkerHandle

NO_PARTITION = -1
"""Number in place of a partition: nothing is trained, the trial is tested and its run ends."""
_LEAD_S = 0.25
"""Minimum time before a worker is idle at which its next sub-epoch is decided and the model sent."""


class Dispatcher:
    """Trials of a hopping run and their assignment to workers.

    Args:
        run_dir: the hopping run's own folder.
        trials: to be trained, by their numbers.
        epochs: of every trial, including those already done.
        handles: of the workers; complete before the first assignment.
        terminal: for the live table, if there is one.
    """

    def __init__(
        self,
        settings: Pipeline,
        run_dir: Path,
        trials: Mapping[int, HoppingTrial],
        epochs: Sequence[int],
        handles: Mapping[int, WorkerHandle],
        workers: int,
        terminal: Terminal | None = None,
    ):
        self._trials = trials
        self._handles = handles
        self._workers = workers
        self._metric = settings.metric
        self._scheduler = SCHEDULERS[settings.scheduler]()
        self._estimates = Estimates()
        self._measured: set[int] = set()
        """Models with a measured sub-epoch."""
        self._assigned = 0
        self._ending: dict[int, str | None] = {}
        """Trials to be tested and ended, and why; None: they are trained."""
        partitions = next(iter(trials.values())).config.dataset.partitions if trials else 1
        self._progress = HoppingProgress(
            {number: epochs[number] for number in trials}, [p % workers for p in range(partitions)]
        )
        self._restore_positions(epochs)
        self.table = LiveTable(trials, self._progress, workers, settings.metric, terminal)
        self._early_stopping = TrialEarlyStopping(settings, run_dir, epochs)
        self._stop_early(list(self._early_stopping.replay_reports()))
        self.timeline = Timeline(run_dir, workers, [folder.name for folder in settings.folders(run_dir)])
        self._placement = SnapshotPlacement(handles, workers, self.timeline)

    def _restore_positions(self, epochs: Sequence[int]) -> None:
        for number, trial in self._trials.items():
            restore_position(trial, self._progress)
            if self._progress.models[number].epoch >= epochs[number]:
                self._ending[number] = None

    @property
    def finished(self) -> bool:
        return all(trial.finished for trial in self._trials.values())

    def snapshots_to_save(self, alive: set[int]) -> dict[int, list[int]]:
        """Snapshots that each surviving worker has to save when the run ends here."""
        return snapshots_to_save(list(self._trials.values()), alive)

    def assign(self) -> None:
        """Assign a sub-epoch to each worker that is idle or soon will be."""
        for rank, handle in sorted(self._handles.items()):
            if handle.current is not None and (handle.next is not None or not self._due(handle.current)):
                continue
            if self._ending:
                self._assign_ending(handle)
                continue
            free_in = [self._handles[other].free_in() for other in range(self._workers)]
            sub_epoch = self._scheduler.next(rank, self._progress, self._estimates, free_in)
            if sub_epoch is not None:
                self._progress.begin(sub_epoch)
                self._start(handle, sub_epoch)

    def _due(self, current: Assignment) -> bool:
        """Whether it is time to decide what follows a sub-epoch.

        As late as the hop allows: every decision made earlier knows less of the times of the others.
        """
        if current.sub_epoch.model not in self._measured:
            return True
        return current.remaining() < _LEAD_S + 2 * self.timeline.slowest_hop

    def _assign_ending(self, handle: WorkerHandle) -> None:
        """Have a trial tested and ended, preferably one whose model is on this worker."""
        here = [number for number in self._ending if self._trials[number].held_by(handle.rank)]
        number = next(iter(here or self._ending))
        reason = self._ending.pop(number)
        self._start(handle, SubEpoch(number, self._progress.models[number].epoch, NO_PARTITION), reason)

    def _start(self, handle: WorkerHandle, sub_epoch: SubEpoch, stop_reason: str | None = None) -> None:
        self._assigned += 1
        seconds = self._estimates.seconds(sub_epoch.model, handle.rank)
        assignment = Assignment(self._assigned, sub_epoch, seconds)
        if handle.current is None:
            handle.current = assignment
        else:
            handle.next = assignment
        partitions = [] if sub_epoch.partition == NO_PARTITION else self._progress.models[sub_epoch.model].order
        self._placement.start(
            self._trials[sub_epoch.model], handle, assignment.number, sub_epoch.epoch, partitions, stop_reason
        )

    def copied(self, handle: WorkerHandle, message: SnapshotCopied) -> None:
        self._placement.add_copy(self._trials[message.trial], handle.rank, message.number)

    def started(self, handle: WorkerHandle, message: SubEpochStarted) -> None:
        assert handle.current is not None
        assert handle.current.number == message.number
        handle.current.started_at = time.monotonic()
        trial = self._trials[handle.current.sub_epoch.model]
        trial.trained_by = handle.rank
        self.timeline.hop_took(message.hop)
        self._placement.record_arrival(trial, handle.rank)

    def completed(self, handle: WorkerHandle, message: SubEpochCompleted) -> None:
        sub_epoch = self._pop_current(handle, message)
        trial = self._trials[sub_epoch.model]
        if sub_epoch.partition != NO_PARTITION:
            self._estimates.record(sub_epoch.model, handle.rank, message.seconds)
            self._measured.add(sub_epoch.model)
        self.timeline.add(sub_epoch, handle.rank, message)
        self.table.update_metrics(sub_epoch.model, message.metrics)
        if message.status == "done":
            self._end(trial, sub_epoch, "success")
            self._report_done(trial, message.metrics)
            return
        trial.trained_by = None
        if message.snapshot is not None:
            self._placement.record_new(trial, handle.rank, message.snapshot)
            if self._progress.end(sub_epoch, message.epoch > sub_epoch.epoch):
                self._stop_early(self._early_stopping.report(sub_epoch.model, message.epoch, message.metrics))

    def failed(self, handle: WorkerHandle, message: SubEpochFailed) -> None:
        sub_epoch = self._pop_current(handle, message)
        self._end(self._trials[sub_epoch.model], sub_epoch, "failed")

    def _pop_current(self, handle: WorkerHandle, message: SubEpochCompleted | SubEpochFailed) -> SubEpoch:
        ended = handle.current
        assert ended is not None
        assert ended.number == message.number
        handle.current, handle.next = handle.next, None
        self._trials[ended.sub_epoch.model].log(message.log)
        return ended.sub_epoch

    def _end(self, trial: HoppingTrial, sub_epoch: SubEpoch, status: str) -> None:
        """End a trial that is done or has failed."""
        if sub_epoch.partition != NO_PARTITION:
            self._progress.end(sub_epoch)
        self._progress.withdraw(trial.number)
        self._placement.drop(trial)
        trial.end(status)
        self._stop_early(self._early_stopping.remove(trial.number))

    def _stop_early(self, stopped: Sequence[StoppedEarly]) -> None:
        """End trials early, and hold those that wait for others."""
        for each in stopped:
            if each.trial in self._trials and not self._trials[each.trial].finished:
                self._progress.withdraw(each.trial)
                self._ending[each.trial] = each.reason
                self.table.print_line(f"trial {self._trials[each.trial].name} is stopped early: {each.reason}")
        for number, model in self._progress.models.items():
            model.held = self._early_stopping.holds(number)

    def _report_done(self, trial: HoppingTrial, metrics: dict[str, float]) -> None:
        names = (self._metric, "test/acc")
        shown = ", ".join(f"{name} {metrics[name]:.4g}" for name in names if name in metrics)
        done = sum(trial.finished for trial in self._trials.values())
        self.table.print_line(f"trial {trial.name} is done ({done} of {len(self._trials)})  {shown}")
