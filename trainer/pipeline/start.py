"""Having a pipeline run, by whatever its topology says starts its workers."""

from pathlib import Path

from ..config import load
from ..origin import shown
from ..sweep_results import QUEUED, WAITING
from ..trial_process import STOPPED, run_process


def started(run_dir: Path) -> int:
    """Run a frozen pipeline to its end, where that can be done from here.

    Returns:
        The exit code of its processes; QUEUED: it is to be submitted to Slurm; WAITING: a command on each host will
        start it.

    Raises:
        SystemExit: it was told to stop, with its code.
    """
    topology = load(run_dir).topology
    if topology.launcher == "slurm":
        return QUEUED
    if topology.launcher == "node":
        print(f"on each of the {topology.nodes} hosts, HOST being one of them and the same for all:")
        print(f"  leyden node --rendezvous HOST:29400 {shown(run_dir)}", flush=True)
        return WAITING
    # as one to go on, at its first start, too: refused, it is not removed, and `leyden resume SWEEP` finds it
    code = run_process(run_dir, "resume")
    if code in STOPPED:
        raise SystemExit(code)
    return code
