"""One training process: the command's own for one worker, a child of the elastic agent for several."""

import json
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from ..binding import bind
from ..config import Config, load
from ..log import close_log, open_log
from ..signals import StopRequest, give_back
from ..targets import make_importable
from ..whole_file import whole_file
from .parent import end_with_parent

EXIT_CODES = {"done": 0, "preempted": 75, "interrupted": 130}
"""By the status that a run ends with."""
FAILURES = "LEYDEN_FAILURES"
"""Environment variable: the folder where a worker says who it is, and why it failed."""


def work_here(config: Config, run_dir: Path, verb: str, checkpoint: Path | None) -> int:
    """A run with one worker, in this process.

    Raises:
        ValueError: a user's mistake; what `train` had written is removed.
    """
    from ..run import CannotStart

    stop_request = StopRequest()
    kept = stop_request.listen()
    try:
        return EXIT_CODES[_work(config, run_dir, verb, checkpoint, stop_request)]
    except CannotStart:
        remove_unstarted(run_dir, verb)
        raise
    except Exception as error:
        from ..report import last_good_checkpoint, mark_failed

        traceback.print_exc()
        print(f"{type(error).__name__}: {error}\n{last_good_checkpoint(run_dir)}", file=sys.stderr)
        mark_failed(run_dir, f"{type(error).__name__}: {error}", rank=0)
        return 1
    finally:
        close_log()
        _take_group_down()
        give_back(kept)


def _work(config: Config, run_dir: Path, verb: str, checkpoint: Path | None, stop_request: StopRequest) -> str:
    make_importable(config)
    open_log(run_dir, int(os.environ.get("RANK", "0")), config.topology.workers)
    silence_libraries()
    from ..run import cut_loggers, evaluate_only, prepare, train

    state = prepare(config, run_dir, verb, checkpoint, stop_request)
    try:
        if verb == "eval":
            return evaluate_only(state)
        if verb == "resume":
            cut_loggers(state)
        return train(state)
    except Exception:
        state.call("on_exception")
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


def main() -> None:
    """A worker under the agent: leyden.trainer.launch.worker RUN_DIR VERB [CHECKPOINT]."""
    run_dir, verb, checkpoint = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    rank = int(os.environ["RANK"])
    if not end_with_parent(int(os.environ["LEYDEN_AGENT"]), signal.SIGKILL):
        os._exit(1)
    stop_request = StopRequest()
    stop_request.listen()
    failures = Path(os.environ[FAILURES])
    (failures / f"{rank}.pid").write_text(str(os.getpid()))
    try:
        config = load(run_dir)
        bind(config, int(os.environ["LOCAL_RANK"]))
        _work(config, run_dir, verb, Path(checkpoint) if checkpoint else None, stop_request)
        _leave()
    except Exception as error:
        _record_failure(failures / f"{rank}.json", error)
        _exit(1)
    _exit(0)


def _exit(code: int) -> NoReturn:
    """Straight out: peers see closed sockets now, and no thread of gloo's can abort the interpreter's slow end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


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


def _record_failure(path: Path, error: Exception) -> None:
    from ..run import CannotStart

    record = {
        "time": time.time(),
        "message": str(error) if isinstance(error, CannotStart) else f"{type(error).__name__}: {error}",
        "users_mistake": isinstance(error, CannotStart),
        "traceback": traceback.format_exc(),
    }
    with whole_file(path) as file:
        json.dump(record, file)


if __name__ == "__main__":
    main()
