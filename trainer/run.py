"""What a worker does, from frozen config to finished run."""

from pathlib import Path

from . import checkpoint
from .assemble import assemble
from .config import Config
from .errors import CannotStart
from .evaluation import evaluate
from .faults import stated
from .log import log
from .loop import Stopped, fit
from .preflight import ask_nccl_for_its_log, check_machines, check_room, check_transport
from .pulse import CALLBACKS, MEETING, START, pulse
from .report import announce, finish, print_end
from .sessions import Session, merged
from .signals import STATUS, StopRequest
from .state import RunState
from .summary import read_sessions, write_summary


def prepare(
    config: Config, run_dir: Path, verb: str, from_checkpoint: Path | None, stop_request: StopRequest
) -> RunState:
    """
    Raises:
        CannotStart: with the message for the user.
    """
    try:
        check_machines(config, run_dir)
        ask_nccl_for_its_log(config, run_dir)
        state = assemble(config, run_dir, stop_request)
        check_transport(config, run_dir, state.fabric.device)
        check_room(state)
        continued = verb != "train" and continue_from(state, from_checkpoint)
        if config.init_from is not None and not continued:
            log.info(checkpoint.load_weights(state.task, config.init_from, state.contract.whole_shapes(state.task)))
        return state
    except CannotStart:
        raise
    except (ValueError, OSError) as error:
        raise CannotStart(stated(str(error))) from error


def continue_from(state: RunState, path: Path | None) -> bool:
    """Restore a given checkpoint, or the newest whole one; all workers the one that the first finds.

    Returns:
        Whether there was one.
    """
    content = None
    if path is None and state.fabric.is_global_zero:
        path, content = checkpoint.newest(state.run_dir) or (None, None)
    path = state.fabric.broadcast(path)
    if path is None:
        log.info("no checkpoint yet: starts from the beginning")
        return False
    checkpoint.restore(state, path, content or checkpoint.read(path))
    return True


def cut_loggers(state: RunState) -> None:
    """What was logged after the checkpoint will be logged again."""
    if state.fabric.is_global_zero:
        step = state.step if state.resumed_from is not None else -1
        for logger in state.fabric.loggers:
            if hasattr(logger, "cut_after"):
                logger.cut_after(step)  # pyright: ignore[reportAttributeAccessIssue]
    state.fabric.barrier()


def train(state: RunState) -> str:
    """Fit, test, report. Returns the run's status."""
    begin(state)
    try:
        fit(state)
    except Stopped:
        status = told_to_stop(state)
    else:
        status = judge(state)
    end(state, status)
    print_end(state)
    return status


def begin(state: RunState) -> None:
    """Say who trains, and that it goes on. A session begins; the time of those before it is kept."""
    pulse.at(START, state.step)
    announce(state)
    workers = state.fabric.world_size
    state.session = Session.begun(state.step, state.samples, workers)
    if state.fabric.is_global_zero:
        state.earlier_sessions = merged(state.earlier_sessions, read_sessions(state.run_dir))
        now = {"status": "running", "world_size": workers, "steps": state.step}
        write_summary(state.run_dir, {**now, "sessions": state.earlier_sessions})


def told_to_stop(state: RunState) -> str:
    """The status of a run that a signal has stopped."""
    assert state.stop_request.signal is not None
    status = STATUS[state.stop_request.signal]
    log.info("%s at step %d; saved in %s", status, state.step, state.last_checkpoint)
    return status


def judge(state: RunState) -> str:
    """Test a model that is trained. Returns the run's status."""
    if state.stop_reason is not None:
        log.info("stopped early: %s", state.stop_reason)
    if state.data.has("test"):
        state.report(evaluate(state, "test", state.config.trainer.limit_test_batches))
    return "done"


def end(state: RunState, status: str) -> None:
    """Call what has to be called, and write down how it ended."""
    pulse.at(CALLBACKS, state.step)
    state.call("on_fit_end")
    state.hooks("teardown", "fit")
    pulse.at(MEETING, state.step)
    finish(state, status)


def evaluate_only(state: RunState) -> str:
    """Validation and test metrics of a checkpoint, printed; the run's files stay as they are."""
    state.call("on_fit_start")
    for split in ("val", "test"):
        if state.data.has(split):
            for name, value in evaluate(state, split, 1.0).items():
                if state.fabric.is_global_zero:
                    log.info("%-12s %.6g", name, value)
    state.call("on_fit_end")
    return "done"
