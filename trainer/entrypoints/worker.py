"""A training process: the command's own where one is enough, else a child of the agent."""

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace

from ..base.errors import CannotStart, Explained, Refused
from ..base.failure_log import log_traceback
from ..base.heartbeat import START, heartbeat
from ..base.log import close_log, open_log
from ..base.printable import printable
from ..base.process import default_variable, flush_files, keep_freed_memory
from ..base.regular_file import NotRegularFile
from ..base.signals import StopRequest, restore_handlers
from ..base.system_errors import system_errors
from ..config.evaluation_data import refuse_without_model
from ..config.job import JobSpec
from ..config.schema import Config, PinnedWeights
from ..config.targets import make_importable
from ..core import threads
from ..hardware import cpu_contention
from ..hardware.affinity import bind
from ..launch.child import end_with_agent, run_as_child
from ..launch.hangs.watchdog import Watchdog
from ..runs.exit_codes import EXIT_CODES, REFUSED
from ..runs.folder import remove_unstarted, storage_of


def run_in_process(
    job: JobSpec,
    listens: bool = True,
    reports: Callable[[Exception], bool] = lambda error: True,
    stop_request: StopRequest | None = None,
) -> int:
    """Run a worker in this process, which no agent watches over.

    Args:
        listens: whether stop signals are handled.
        reports: whether this worker is the one that reports the error that ends the run. One that is not is silent.
        stop_request: of this process; None: one of its own.

    Returns:
        The exit code; 3 where the preflight refuses this machine.

    Raises:
        ValueError: a user's mistake; what `train` had written is removed.
    """
    stop_request = stop_request or StopRequest()
    StopRequest.current = stop_request
    previous = stop_request.listen() if listens else {}
    watchdog = start_watchdog(job)
    atexit.unregister(flush_files)  # of an earlier run of this process
    atexit.register(flush_files)
    try:
        status = run_worker(job, stop_request)
        _leave_process_group()
        return EXIT_CODES[status]
    except Refused as error:
        if not reports(error):
            return REFUSED
        print(error, file=sys.stderr, flush=True)
        remove_unstarted(job.run_dir, job.verb)
        if job.verb == "resume":
            from ..runs.summary import mark_refused

            mark_refused(job.run_dir, str(error))
        return REFUSED
    except CannotStart as error:
        if not reports(error):
            return 2
        remove_unstarted(job.run_dir, job.verb)
        raise
    except Exception as error:
        if reports(error):
            report_failure(error, job, worker_number())
        return 1
    finally:
        StopRequest.current = None
        if watchdog is not None:
            watchdog.stop()
        close_log()
        if job.config.worker_processes == 1:
            _destroy_process_group()  # of several, after a failure, this would wait for the others
        restore_handlers(previous)


def report_failure(error: Exception, job: JobSpec, rank: int) -> None:
    """Record the error that ends the run, and print it.

    Args:
        rank: of the process; -1: a server.
    """
    from ..runs import failure_report
    from ..runs.summary import mark_failed

    message = printable(str(error) if isinstance(error, Explained) else f"{type(error).__name__}: {error}")
    trace = log_traceback(error)
    close_log()  # whose descriptor the summary may need
    if not job.is_evaluation:
        # first: the terminal may be a file on the disk that is full
        mark_failed(job.run_dir, message, rank)
    failure_report.report_failure(job.run_dir, job.verb, message, trace)


def start_watchdog(job: JobSpec) -> Watchdog | None:
    """The running watchdog of this process; None where trainer.hang_timeout is null."""
    timeout = job.config.trainer.hang_timeout
    if timeout is None:
        return None
    heartbeat.at(START, 0)
    watchdog = Watchdog(job, timeout, worker_number())
    watchdog.start()
    return watchdog


def run_worker(job: JobSpec, stop_request: StopRequest) -> str:
    """Run a worker in this process, its agent and signals aside. Returns the status for summary.json."""
    config = job.config
    heartbeat.begin_run()
    cpu_contention.start_measurement()
    make_importable(config)
    with system_errors(storage_of(job.run_dir, config.pipeline is not None)), _offline(config):
        try:
            open_log(None if job.is_evaluation else job.run_dir, worker_number(), config.topology.workers)
        except NotRegularFile as error:
            raise CannotStart(f"{error}: remove it") from error
        with threads.hold_threads(config, worker_number() % config.topology.devices_per_node):
            return _dispatch(job, stop_request)


def _offline(config: Config) -> AbstractContextManager[None]:
    """Context of a run that needs nothing of a hub: what it needs was fetched when it was frozen."""
    pinned = config.model is not None and isinstance(config.model.pretrained, PinnedWeights)
    return default_variable("HF_HUB_OFFLINE", "1") if pinned else nullcontext()


def _dispatch(job: JobSpec, stop_request: StopRequest) -> str:
    config = job.config
    if job.is_evaluation:
        refuse_without_model(config)
        # an evaluation logs nothing, and writes nothing into the run
        nothing = config.trainer.model_copy(update={"profiler": None})
        job = replace(job, config=config.model_copy(update={"logger": {}, "trainer": nothing}))
    elif config.doctor is not None:
        from ..diagnostics.doctor.run import examine

        return examine(config, job.run_dir, stop_request)
    silence_libraries()
    keep_freed_memory()
    from ..core.lightning_compat import read_rank_again

    read_rank_again()  # a run before this one in the process may have had another
    if config.pipeline is not None:
        from ..hopping.worker import work

        work(config, job.run_dir, worker_number(), stop_request)
        return "done"
    from ..engine.device_memory import memory_errors
    from ..engine.kernels import hold_kernels

    with memory_errors(config), hold_kernels(config):
        return _train_or_evaluate(job, stop_request)


def _train_or_evaluate(job: JobSpec, stop_request: StopRequest) -> str:
    from ..core.callback_contract import CallbackContract
    from ..engine.report import finalize_loggers
    from ..engine.train import cut_loggers, evaluate_only, prepare, train

    state = prepare(job, stop_request)
    try:
        if job.verb == "resume":
            cut_loggers(state)
        status = evaluate_only(state) if job.is_evaluation else train(state)
        state.contract.disconnect()
        return status
    except Exception as error:
        with suppress(OSError):  # of a full disk, as the error itself may be
            state.call(CallbackContract.on_exception)
            state.hooks("on_exception", error)
        with suppress(OSError):
            finalize_loggers(state, "failed")
        raise
    finally:
        state.data.close()


def silence_libraries() -> None:
    """Mute Lightning's notes on each rank's registration and its advertisement of a cloud logger; its warnings stay."""
    import logging

    import lightning  # noqa: F401  # its import sets the levels

    for name in ("lightning", "lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)


def worker_number() -> int:
    """This process's number among the run's workers. An elastic one has no rank, since it is in no process group."""
    return int(os.environ.get("RANK") or os.environ.get("LEYDEN_WORKER") or 0)


def main() -> None:
    """A worker under the agent: leyden.trainer.entrypoints.worker RUN_DIR VERB [CHECKPOINT]."""
    end_with_agent()
    stop_request = StopRequest()
    stop_request.listen()

    def work() -> None:
        job = JobSpec.from_argv(sys.argv[1:])
        bind(job.config.topology, worker_number() % job.config.topology.devices_per_node)
        run_worker(job, stop_request)
        _leave_process_group()

    run_as_child(_role_name(), work)


def _role_name() -> str:
    """The agent's name for this process's files; each incarnation of an elastic worker has its own."""
    incarnation = os.environ.get("LEYDEN_INCARNATION")
    return str(worker_number()) if incarnation is None else f"{worker_number()}-{incarnation}"


def _leave_process_group() -> None:
    # a worker that exits without destroying its group is aborted by gloo in about one run of four
    import torch.distributed as dist

    close_log()
    if dist.is_initialized():
        dist.barrier()
    _destroy_process_group()


def _destroy_process_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
