"""One training process: the command's own where one is enough, else a child of the agent."""

import os
import shutil
import sys
import traceback
from pathlib import Path

from .. import busy, threads
from ..binding import bind
from ..config import Config, load
from ..errors import CannotStart, NotLogged, Refused
from ..log import close_log, open_log
from ..pulse import START, pulse
from ..signals import StopRequest, give_back
from ..targets import make_importable
from .child import end_with_agent, run_as_child
from .heap import keep_freed_memory
from .own_watch import OwnWatch

EXIT_CODES = {"done": 0, "slow": 1, "preempted": 75, "interrupted": 130}
"""By the status that a run ends with; slow: the doctor found something that is."""
REFUSED = 3
"""Exit code where the preflight refused a run."""


def work_here(config: Config, run_dir: Path, verb: str, checkpoint: Path | None) -> int:
    """A run with one worker, in this process.

    Returns:
        The exit code; 3 where the preflight refuses this machine.

    Raises:
        ValueError: a user's mistake; what `train` had written is removed.
    """
    stop_request = StopRequest()
    kept = stop_request.listen()
    watch = watched(config, run_dir)
    try:
        return EXIT_CODES[_work(config, run_dir, verb, checkpoint, stop_request)]
    except Refused as error:
        print(error, file=sys.stderr, flush=True)
        remove_unstarted(run_dir, verb)
        if verb == "resume":
            from ..summary import mark_refused

            mark_refused(run_dir, str(error))
        return REFUSED
    except CannotStart:
        remove_unstarted(run_dir, verb)
        raise
    except Exception as error:
        from ..summary import last_good_checkpoint, mark_failed

        message = f"{type(error).__name__}: {error}"
        if isinstance(error, NotLogged):
            message = str(error)
        else:
            traceback.print_exc()
        print(f"{message}\n{last_good_checkpoint(run_dir)}", file=sys.stderr)
        mark_failed(run_dir, message, rank=0)
        return 1
    finally:
        if watch is not None:
            watch.stop()
        close_log()
        _take_group_down()
        give_back(kept)


def watched(config: Config, run_dir: Path) -> OwnWatch | None:
    """A watch over this process, where the config wants one."""
    if config.trainer.hang_timeout is None:
        return None
    pulse.at(START, 0)
    watch = OwnWatch(config, run_dir, config.trainer.hang_timeout)
    watch.start()
    return watch


def _work(config: Config, run_dir: Path, verb: str, checkpoint: Path | None, stop_request: StopRequest) -> str:
    busy.look()
    make_importable(config)
    open_log(run_dir, own_number(), config.topology.workers)
    with threads.fixed(config, own_number() % config.topology.devices_per_node):
        return _computed(config, run_dir, verb, checkpoint, stop_request)


def _computed(config: Config, run_dir: Path, verb: str, checkpoint: Path | None, stop_request: StopRequest) -> str:
    if config.doctor is not None:
        from ..doctor.examine import examine

        return examine(config, run_dir, stop_request)
    silence_libraries()
    keep_freed_memory()
    if config.pipeline is not None:
        from ..pipeline.worker import work

        work(config, run_dir, own_number(), stop_request)
        return "done"
    from ..run import cut_loggers, evaluate_only, prepare, train

    state = prepare(config, run_dir, verb, checkpoint, stop_request)
    try:
        if verb == "resume":
            cut_loggers(state)
        status = evaluate_only(state) if verb == "eval" else train(state)
        state.contract.leave()
        return status
    except Exception as error:
        state.call("on_exception")
        state.hooks("on_exception", error)
        raise


def silence_libraries() -> None:
    """Lightning reports each rank's registration and advertises its cloud logger; its warnings stay."""
    import logging

    import lightning  # noqa: F401  # its import sets the levels

    for name in ("lightning", "lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)


def remove_unstarted(run_dir: Path, verb: str) -> None:
    """A run that never began leaves no folder behind."""
    if verb == "train":
        close_log()
        shutil.rmtree(run_dir, ignore_errors=True)


def own_number() -> int:
    """Which of the run's workers this process is; an elastic one has no rank, since it is in no group."""
    return int(os.environ.get("RANK") or os.environ.get("LEYDEN_WORKER") or 0)


def main() -> None:
    """A worker under the agent: leyden.trainer.launch.worker RUN_DIR VERB [CHECKPOINT]."""
    run_dir, verb, checkpoint = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    end_with_agent()
    stop_request = StopRequest()
    stop_request.listen()

    def work() -> None:
        config = load(run_dir)
        bind(config, own_number() % config.topology.devices_per_node)
        _work(config, run_dir, verb, Path(checkpoint) if checkpoint else None, stop_request)
        _leave()

    run_as_child(own_name(), work)


def own_name() -> str:
    """As the agent calls this process's files; an elastic worker that is started again is another one."""
    incarnation = os.environ.get("LEYDEN_INCARNATION")
    return str(own_number()) if incarnation is None else f"{own_number()}-{incarnation}"


def _leave() -> None:
    """A worker that exits without taking the group down is aborted by gloo in about one run of four."""
    import torch.distributed as dist

    close_log()
    if dist.is_initialized():
        dist.barrier()
    _take_group_down()


def _take_group_down() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
