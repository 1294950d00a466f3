"""Starting the processes of a run from its frozen config: none where this one will do, else under Leyden's agent."""

from contextlib import nullcontext
from pathlib import Path

from ..config import Config, load
from ..environment import apply
from ..presence import leading
from .roles import is_alone


def start(run_dir: Path, verb: str = "train", checkpoint: Path | None = None) -> int:
    """Run the workers to their end.

    Args:
        run_dir: holds config.yaml.
        verb: train | resume | eval.
        checkpoint: what resume and eval start from; None: the newest whole one.

    Returns:
        0 done; 1 failed; 3 refused by the preflight; 75 preempted and saved; 130 interrupted; 143 terminated without
        a checkpoint.

    Raises:
        ValueError: a user's mistake that only building the parts could show; what `train` had written is removed.
            Or another process of this host leads the run already.
    """
    run_dir = run_dir.absolute()
    config = load(run_dir)
    if config.launcher == "node":
        raise ValueError(f"this run is started on each of its hosts: leyden node --rendezvous HOST:PORT {run_dir}")
    if config.launcher == "slurm":
        raise ValueError(f"this run is started by Slurm: leyden resume {run_dir}")
    return start_here(config, run_dir, verb, checkpoint)


def start_here(config: Config, run_dir: Path, verb: str, checkpoint: Path | None) -> int:
    """Run the workers of a run that has one node, which is this machine. Returns and raises as `start` does."""
    with nullcontext() if verb == "eval" else leading(run_dir):
        return _start(config, run_dir, verb, checkpoint)


def _start(config: Config, run_dir: Path, verb: str, checkpoint: Path | None) -> int:
    # only a process of its own can be started again
    if is_alone(config) and config.topology.max_restarts == 0:
        from .worker import work_here

        return work_here(config, run_dir, verb, checkpoint)
    apply(config, run_dir if verb != "eval" else None)
    from .agent import launch

    return launch(config, run_dir, verb, checkpoint)
