"""trainer.profiler: some optimizer steps as a trace for Perfetto (ui.perfetto.dev), with the phases of a step named."""

import torch
from typing_extensions import override

from ..base.heartbeat import PHASES, heartbeat
from ..base.log import log
from ..base.paths import shorten_path
from ..config.schema import ProfilerOptions
from ..core.callback_contract import CallbackContract
from ..core.state import RunState

FOLDER = "profile"
"""Folder of the traces in the run's folder."""


class StepProfiler(CallbackContract):
    """A callback that writes RUN/profile/rank-R-steps-A-B.json.gz, a file of each worker.

    Operations of the host, kernels of the device, and the phases of the heartbeat: data, forward, backward, update, a
    synchronization of all workers, callbacks and logging. What is trained is the same; the profiled steps are slower.

    Args:
        options: steps, counted from the session's first one.
    """

    def __init__(self, options: ProfilerOptions):
        self._options = options
        self._first = 0
        self._profile: torch.profiler.profile | None = None
        self._phase: torch.profiler.record_function | None = None

    @override
    def on_fit_start(self, state: RunState) -> None:
        self._first = state.step + self._options.first_step
        self._begin_at(state)

    @override
    def on_step_end(self, state: RunState) -> None:
        if self._profile is not None and state.step >= self._first + self._options.steps - 1:
            self._end(state)
        self._begin_at(state)

    @override
    def on_fit_end(self, state: RunState) -> None:
        """The training ended among the steps: what there is of them."""
        if self._profile is not None:
            self._end(state)
        elif state.step < self._first and state.fabric.is_global_zero:
            text = "trainer.profiler: the training has ended at step %d, before step %d: no step was profiled"
            log.warning(text, state.step, self._first)

    @override
    def on_exception(self, state: RunState) -> None:
        if self._profile is not None:
            self._end(state)

    def _begin_at(self, state: RunState) -> None:
        """Begin where the next step is the first of them."""
        if state.step + 1 != self._first:
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        if state.fabric.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(activities=activities)
        self._profile.start()
        heartbeat.observer = self._enter
        self._enter(heartbeat.current)

    def _enter(self, phase: int) -> None:
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
        self._phase = torch.profiler.record_function(PHASES[phase])
        self._phase.__enter__()

    def _end(self, state: RunState) -> None:
        assert self._profile is not None
        assert self._phase is not None
        heartbeat.observer = None
        self._phase.__exit__(None, None, None)
        self._profile.stop()
        folder = state.run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        file = folder / f"rank-{state.fabric.global_rank}-steps-{self._first}-{state.step}.json.gz"
        self._profile.export_chrome_trace(str(file))
        self._profile = self._phase = None
        if state.fabric.is_global_zero:
            log.info("profile: %s, for ui.perfetto.dev", shorten_path(file))
