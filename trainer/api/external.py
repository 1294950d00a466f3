"""Runs whose workers another program starts by calling a function, as Ray does: `leyden.freeze`, `leyden.work`."""

import os
from pathlib import Path

from ..base.errors import CannotStart, refuse
from ..base.paths import absolute
from ..base.process import restored_environment
from ..compose.reopen import open_run
from ..config.ended_runs import end_reason, keys_changed_since_end
from ..config.job import JobSpec
from ..launch.external.placement import processes_per_node
from ..launch.external.rendezvous import ExternalRendezvous
from ..launch.external.starters import LAUNCHER, with_external, world_of
from ..runs.lease import hold_lease
from .run import Run
from .training import composed_run, composer_of, ended_run, new_run


def freeze(*overrides: str, config_dir: str | Path | None = None) -> Path:
    """The folder of a new run with its frozen config. Nothing is started: `work` trains it.

    Args:
        overrides: as on the command line; the topology has the nodes, and the devices of each, that will be started.
        config_dir: a folder of your own YAML files.

    Raises:
        ConfigError: a mistake in the config; nothing is left behind.
    """
    composer, words = composer_of(config_dir), with_external(overrides)
    run = composed_run(composer, words)
    with new_run(composer, run, words, listens=False) as (job, _):
        return job.run_dir


def work(folder: str | Path) -> Run:
    """Be one worker of a run, which goes on from its last checkpoint; called in a process of each rank.

    RANK and WORLD_SIZE name the worker, MASTER_ADDR and MASTER_PORT an address of rank 0 at which nothing listens yet
    (`launch.external.starters` has the variables of other starters). No signal handler is installed, and the process is
    not ended. One whose training has failed is to end before the run is started again.

    Args:
        folder: of a run that `freeze` has frozen, on a file system of all hosts.

    Raises:
        ConfigError: it is no such run, or other numbers of processes and hosts have been started.
        TrainingFailed: the run has failed.
    """
    folder = absolute(folder)
    config = open_run(str(folder)).validate_reopened()
    if config.topology.launcher != "external":
        text = "another program starts the workers of leyden.work, and this run starts them itself"
        raise refuse(LAUNCHER, text, config.topology.launcher, "leyden.freeze, for a run of yours")
    if end_reason(JobSpec(config, folder), keys_changed_since_end(folder)) is None:
        _work(folder)
    return Run(folder)


def _work(folder: Path) -> None:
    from ..entrypoints.external import follow

    # a further call in this process finds what its starter has set, not what this one has
    with restored_environment(), ExternalRendezvous(world_of(os.environ)) as rendezvous:
        code = 2
        try:
            rendezvous.gather()
            code = follow(rendezvous, listens=False) if rendezvous.world.rank else _lead(folder, rendezvous)
        finally:
            rendezvous.announce_end(code)
    ended_run(folder, code)


def _lead(folder: Path, rendezvous: ExternalRendezvous) -> int:
    from ..entrypoints.external import lead

    job, placed = JobSpec.load(folder, "resume"), rendezvous.placement
    topology, expected = job.config.topology, processes_per_node(job.config)
    if (topology.nodes, expected) != (placed.nodes, placed.processes_per_node):
        text = f"of the run differs from the {placed.nodes} hosts with {placed.processes_per_node} processes each"
        remedy = f"{topology.nodes} hosts with {expected} processes each"
        raise refuse("topology.nodes", text, topology.nodes, remedy)
    try:
        with hold_lease(folder, listens=False):
            return lead(job, listens=False)
    except CannotStart as error:
        raise error.as_config_error() or refuse("leyden.work", str(error), executed=True) from error
