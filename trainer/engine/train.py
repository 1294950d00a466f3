"""A worker's training, from frozen config to finished run."""

import json
import math
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..base.atomic_file import write_atomically
from ..base.errors import CannotStart, Problem
from ..base.heartbeat import CALLBACKS, START, SYNCHRONIZATION, heartbeat
from ..base.log import log
from ..base.paths import shorten_path
from ..base.regular_file import NotRegularFile
from ..base.signals import STATUS, StopRequest
from ..config.ended_runs import end_reason
from ..config.evaluation_data import evaluates_initial_weights, metrics_file, own_dataset
from ..config.faults import as_problem
from ..config.job import JobSpec
from ..core.callback_contract import CallbackContract
from ..core.checkpoints import checkpoint_io
from ..core.checkpoints.checkpoint_content import misfit
from ..core.checkpoints.checkpoint_io import NotFiniteCheckpoint
from ..core.checkpoints.container import DamagedCheckpoint
from ..core.checkpoints.sharded_checkpoint import CheckpointShards
from ..core.communication.plain_values import all_gather_values, broadcast_value
from ..core.loggers.files import cut_logger
from ..core.state import RunState
from ..data.contents.identity import changes_since, digest_of, is_accepted, other_content
from ..data.datamodule import ImageData
from ..data.evaluation_views import average_over_views
from ..diagnostics.preflight.disk_space import check_disk_space
from ..diagnostics.preflight.machines import check_machines
from ..diagnostics.preflight.transport import check_transport, enable_nccl_log
from ..runs.sessions import Session, merge_sessions
from ..runs.summary import read_sessions, write_summary
from .build import assemble
from .checkpoints import checkpoint
from .checkpoints.checkpoint_files import shard_of
from .evaluate import evaluate
from .init_weights import load_initial_weights
from .loop import Epoch, Stopped, fit
from .monitored_schedules import refuse_monitor_before_validation
from .network.teacher import load_teacher
from .report import announce, finish, print_end
from .ticket_epoch import TicketEpoch


def prepare(job: JobSpec, stop_request: StopRequest) -> RunState:
    """The state of a training that is ready to begin, or to go on from a checkpoint.

    Raises:
        CannotStart: with the message for the user.
    """
    config, run_dir = job.config, job.run_dir
    try:
        # into a run that is evaluated nothing is written
        with TemporaryDirectory(prefix="leyden-") if job.is_evaluation else nullcontext(run_dir) as folder:
            check_machines(config, run_dir if job.shares_folder and not job.is_evaluation else None)
            enable_nccl_log(config, Path(folder))
            state = assemble(config, run_dir, stop_request)
            state.alone_in_process, state.evaluates_only = True, job.is_evaluation
            check_transport(config, Path(folder), state.fabric.device)
        check_disk_space(state)
        if not job.is_evaluation:
            if isinstance(state.data, ImageData):
                state.data.look_at_files(state.fabric)
            recognize_content(state, resumed=job.verb == "resume")
            refuse_monitor_before_validation(state, resumed=job.verb == "resume")
            load_teacher(state)
        elif state.fabric.is_global_zero and own_dataset() is None:
            for text in changes_since(state.run_dir, state.data.found):
                log.warning("the data may not be what the run was trained on: %s", text)
        begins = job.verb == "train" or evaluates_initial_weights()
        continued = not begins and continue_from(state, job.checkpoint, to_evaluate=job.is_evaluation)
        if not continued and job.is_evaluation and not begins:
            ended = end_reason(job, ())
            how = f"; leyden resume {shorten_path(run_dir)} makes one" if ended is None else f": the run {ended}"
            raise CannotStart(f"{run_dir} has no checkpoint to evaluate{how}")
        if not continued:
            load_initial_weights(state)
        if not job.shares_folder and shard_of(state) is not None:
            text = "its workers save files of their own, and not all hosts see the run folder"
            remedy = "hydra.run.dir=FOLDER on a file system of all hosts"
            raise CannotStart(Problem("strategy", text, config.strategy.target, remedy))
        return state
    except CannotStart:
        raise
    except NotFiniteCheckpoint as error:
        if job.is_evaluation:
            raise
        raise CannotStart(str(error)) from error
    except (ValueError, OSError) as error:
        raise CannotStart(as_problem(str(error))) from error


def recognize_content(state: RunState, resumed: bool) -> None:
    """Compare the data with what the newest session of a resumed run has found. Every worker must call it.

    Raises:
        CannotStart: it is another, which the user has not accepted.
    """
    changed, accepted, digest = list[str](), False, None
    if state.fabric.is_global_zero:
        if resumed:
            changed, accepted = changes_since(state.run_dir, state.data.found), is_accepted(state.run_dir)
        digest = digest_of(state.data.found)
    changed, accepted, state.content = broadcast_value([changed, accepted, digest], state.fabric.strategy)
    if changed and not accepted:
        raise CannotStart(other_content(state.run_dir, changed))
    state.has_other_content = bool(changed)
    if changed:
        log.warning("the data has changed, as the user has accepted: %s", "; ".join(changed))


def continue_from(state: RunState, path: Path | None, to_evaluate: bool = False) -> bool:
    """Restore a given checkpoint, or the newest whole one; all workers restore the one that the first finds.

    Returns:
        Whether there was one.

    Raises:
        DamagedCheckpoint: the given one, or every one.
    """
    fits, passed, content = _fits(state), dict[Path, str](), None
    while True:
        found = path
        if path is None and state.fabric.is_global_zero:
            found, content = checkpoint_io.newest(state.run_dir, fits, to_evaluate, passed=passed) or (None, None)
        named = broadcast_value(None if found is None else str(found), state.fabric.strategy)
        if named is None:
            log.info("no checkpoint yet: starts from the beginning")
            return False
        fault = _fault_of_restoring(state, Path(named), content or checkpoint_io.read_to_resume(Path(named), fits))
        if fault is None:
            return True
        if path is not None:
            raise DamagedCheckpoint(fault)
        passed[Path(named)] = fault
        if state.fabric.is_global_zero:
            checkpoint_io.pass_over(Path(named), DamagedCheckpoint(fault), notes=not to_evaluate)


def _fault_of_restoring(state: RunState, path: Path, content: dict[str, Any]) -> str | None:
    """Restore a checkpoint. Returns why a worker could not; None: all could. Every worker must call it."""
    fault = None
    try:
        checkpoint.restore(state, path, content)
    except DamagedCheckpoint as error:
        fault = str(error)
    faults = all_gather_values(fault) if state.fabric.world_size > 1 else [fault]
    return next((each for each in faults if each is not None), None)


def _fits(state: RunState) -> checkpoint_io.Fits | None:
    """A check for checkpoints of another network; None: the task changes what it loads. Every worker must call it."""
    if state.hooks.find("on_load_checkpoint"):
        return None
    own = state.contract.full_shapes(state.task)

    def fits(path: Path, content: dict[str, Any], shards: CheckpointShards | None) -> None:
        tensors = {} if shards is None else shards.tensors
        divided = {name.removeprefix("model/"): t["shape"] for name, t in tensors.items() if name.startswith("model/")}
        reason = misfit(content, divided, own)
        if reason:
            raise DamagedCheckpoint(f"{path} does not fit this run: {reason}")

    return fits


def cut_loggers(state: RunState) -> None:
    """Cut the loggers' files back to the checkpoint: what came after it will be logged again.

    Raises:
        CannotStart: one of them is a FIFO or a device.
    """
    if state.fabric.is_global_zero:
        step = state.step if state.resumed_from is not None else -1
        for logger in state.fabric.loggers:
            try:
                cut_logger(logger, step)
            except NotRegularFile as error:
                raise CannotStart(f"{error}: remove it") from error
    state.fabric.barrier()


def train(state: RunState) -> str:
    """Fit, test, report. Returns the run's status.

    Raises:
        NothingTrained: there was no loss, and no parameter has changed.
    """
    begin(state)
    try:
        fit(state, Epoch if state.contract.ticket_source is None else TicketEpoch)
    except Stopped:
        status = status_of_stop(state)
    else:
        state.loss_watch.refuse_untrained(state.task)
        status = test(state)
    end(state, status)
    print_end(state)
    return status


def begin(state: RunState) -> None:
    """Begin a session: announce it, and mark the run as running; earlier sessions are kept."""
    heartbeat.at(START, state.step)
    announce(state)
    workers = state.fabric.world_size
    state.session = Session.begun(state.step, state.samples, workers)
    if state.fabric.is_global_zero:
        state.earlier_sessions = merge_sessions(state.earlier_sessions, read_sessions(state.run_dir))
        now = {"status": "running", "world_size": workers, "steps": state.step}
        write_summary(state.run_dir, {**now, "sessions": state.earlier_sessions})


def status_of_stop(state: RunState) -> str:
    """The status of a run that a signal has stopped."""
    assert state.stop_request.signal is not None
    status = STATUS[state.stop_request.signal]
    log.info("%s at step %d; saved in %s", status, state.step, state.last_checkpoint)
    return status


def test(state: RunState) -> str:
    """Test a model that is trained. Returns the run's status."""
    if state.stop_reason is not None:
        log.info("stopped early: %s", state.stop_reason)
    if state.data.has("test"):
        state.report(evaluate(state, "test", state.config.trainer.limit_test_batches))
    return "done"


def end(state: RunState, status: str) -> None:
    """End a session: the last hooks, and the run's summary."""
    heartbeat.at(CALLBACKS, state.step, "the training's end")
    state.call(CallbackContract.on_fit_end)
    state.hooks("teardown", "fit")
    with heartbeat.phase(SYNCHRONIZATION):
        finish(state, status)


def evaluate_only(state: RunState) -> str:
    """Validation and test metrics of the weights, printed; the run's files stay as they are.

    Raises:
        CannotStart: the file for the metrics cannot be written.
    """
    found: dict[str, float] = {}
    heartbeat.at(CALLBACKS, state.step)
    state.call(CallbackContract.on_fit_start)
    for split in ("val", "test"):
        if not state.data.has(split):
            continue
        with average_over_views(state.task, state.data.views, state.data.classes):
            values = evaluate(state, split, 1.0)
        found |= values
        for name, value in values.items():
            if state.fabric.is_global_zero:
                log.info("%-12s %.6g", name, value)
    if not found:
        text = "nothing was evaluated: %s logs no metrics of validation and test images, or there are none"
        log.info(text, type(state.task).__name__)
    state.call(CallbackContract.on_fit_end)
    file = metrics_file()
    if file is not None and state.fabric.is_global_zero:
        _write_metrics(file, state, found)
    return "done"


def _write_metrics(file: Path, state: RunState, metrics: dict[str, float]) -> None:
    """Metrics in JSON, with the run and the step of its checkpoint or the weights, and the data; NaN is null."""
    dataset = state.config.dataset.model_dump(by_alias=True)
    about: dict[str, Any] = {"run": str(state.run_dir), "step": state.step, "dataset": dataset}
    if evaluates_initial_weights():
        model = state.config.model
        about |= {"run": None, "init_from": state.config.init_from, "model": model and model.model_dump(by_alias=True)}
    values = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    try:
        write_atomically(file, json.dumps({**about, "metrics": values}, indent=2) + "\n")
    except OSError as error:
        raise CannotStart(f"{file} cannot be written: {error.strerror or error}") from error
    log.info("written to %s", shorten_path(file))
