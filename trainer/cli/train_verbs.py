"""Verbs that train: train, resume, node."""

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import CannotStart, ConfigError, SystemFailure, refuse

if TYPE_CHECKING:
    from ..compose.composer import ComposedRun
    from ..config.job import JobSpec


def train(parsed: argparse.Namespace) -> int:
    from ..compose.composer import Composer

    composer = Composer(parsed.config_dir, parsed.config_name)
    if parsed.cfg:
        return _print_config(composer, parsed)
    if parsed.info:
        return _print_info(composer, parsed)
    return _sweep(composer, parsed.words) if parsed.multirun else _start_new(composer, parsed)


def _sweep(composer: Any, overrides: list[str]) -> int:
    from ..base.paths import shorten_path
    from ..base.system_errors import system_failure
    from ..sweep.sweep import Sweep

    sweep = Sweep(composer, overrides)
    try:
        return sweep.run()
    except OSError as error:
        if sweep.folder is None:
            raise
        failure = error if isinstance(error, SystemFailure) else system_failure(error, sweep.folder)
        if failure is None:
            raise
        print(f"{failure}\ncontinue with: leyden resume {shorten_path(sweep.folder)}", file=sys.stderr, flush=True)
        return 1


def _start_new(composer: Any, parsed: argparse.Namespace) -> int:
    from ..entrypoints.fork_server import prepare

    overrides = _for_started_processes(composer, parsed.words)
    run = composer.run(overrides, prepare)
    # not above: a mistake in the config does not wait for them
    from ..api.training import new_run
    from ..base.paths import shorten_path
    from ..sweep.hopping_plan import is_pipeline

    if run.is_sweep:
        return _sweep(composer, overrides)
    if is_pipeline(run.composed):
        text = "trains the models of a sweep concurrently, and this is one run"
        raise refuse("hydra/launcher", text, "pipeline", "leyden -m hydra/launcher=pipeline ...")
    existing = _existing(composer, run)
    if existing is not None:
        return go_on(parsed, existing, [f"topology.{key}={getattr(run.config.topology, key)}" for key in _SIZES])
    with new_run(composer, run, overrides) as (job, lease):
        _announce(run, overrides)
        if job.config.launcher == "node":
            print(f"run folder: {shorten_path(job.run_dir)}")
            return print_node_command(job.config, job.run_dir)
        if job.config.launcher == "slurm":
            # the job may begin, and lead, before sbatch returns
            lease.close()
        return start_run(job)


def _for_started_processes(composer: Any, overrides: list[str]) -> list[str]:
    """The overrides, with the sizes of the topology from another program that has started this one's processes."""
    from ..launch.external.starters import EXTERNAL

    if EXTERNAL not in overrides:
        return overrides
    from omegaconf import OmegaConf

    from ..launch.external.sizes import servers_of, with_sizes

    composed = composer.compose_with_hydra(overrides)
    strategy: Any = OmegaConf.to_container(composed.strategy) if OmegaConf.is_dict(composed.strategy) else {}
    servers = servers_of(str(strategy.get("_target_")), strategy, composed.topology.server_placement)
    return with_sizes(overrides, composed.topology, servers)


def start_run(job: "JobSpec") -> int:
    from ..base.paths import shorten_path

    if job.config.launcher == "slurm":
        from ..launch.slurm.submit import submit

        code = submit(job)
        if job.verb == "train":
            print(f"run folder: {shorten_path(job.run_dir)}", flush=True)
        return code
    if job.config.launcher == "external" and not job.is_evaluation:
        from ..entrypoints.external import lead

        return _as_config_error(job.verb, lambda: lead(job))
    from ..entrypoints.start import start_job

    return _as_config_error(job.verb, lambda: start_job(job))


def _as_config_error(verb: str, run: Callable[[], int]) -> int:
    """The result of `run`; user errors found only while building become one message."""
    try:
        return run()
    except ConfigError:
        raise
    except CannotStart as error:
        raise error.as_config_error() or refuse(f"leyden {verb}", str(error), executed=True) from error
    except ValueError as error:
        raise refuse(f"leyden {verb}", str(error), executed=True) from error


def print_node_command(config: Any, named: Path, flag: str = "") -> int:
    from ..base.paths import shorten_path
    from ..config.target_policy.untrusted_runs import is_trusted

    nodes, flag = config.topology.nodes, f"{flag}--trust " if is_trusted() else flag
    print(f"on each of the {nodes} hosts, with the same HOST, one of them, everywhere:")
    print(f"  leyden node {flag}--rendezvous HOST:29400 {shorten_path(named)}")
    return 0


def _announce(run: "ComposedRun", overrides: list[str]) -> None:
    from ..compose.checks import slow_settings

    chosen = run.composed.hydra.runtime.choices
    words = ["dataset", "model", "strategy", "topology", *(["experiment"] if chosen.get("experiment") else [])]
    print("  ".join(f"{group}={chosen.get(group) or 'null'}" for group in words))
    if overrides:
        print(f"overridden: {' '.join(overrides)}")
    for line in run.notices():
        print(line)
    if run.config.launcher == "node" and run.composed.topology.device.kind == "auto":
        print(f"topology.device.kind: {run.config.topology.device.kind} on every host, as on this one")
    sys.stdout.flush()
    for problem in slow_settings(run.config):
        print("leyden: warning", *problem.lines(), sep="\n", file=sys.stderr, flush=True)


def _print_config(composer: Any, parsed: argparse.Namespace) -> int:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from ..compose.composition.resolved_values import explain_unresolved

    composed = composer.compose_with_hydra(parsed.words)
    whole = parsed.package in (None, "_global_")
    if not whole and OmegaConf.select(composed, parsed.package, throw_on_missing=False) is None:
        raise refuse("--package", "there is no such key in the config", parsed.package)
    try:
        composer.hydra.show_cfg(composer.config_name, parsed.words, parsed.cfg, parsed.package, parsed.resolve)
    except OmegaConfBaseException as error:
        raise explain_unresolved(error, composed).with_places(composer.origin(parsed.words).where) from None
    return 0


def _print_info(composer: Any, parsed: argparse.Namespace) -> int:
    composer.compose_with_hydra(parsed.words)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        composer.hydra.show_info(parsed.info, composer.config_name, parsed.words)
    finally:
        # Hydra prints by a handler of the root logger, which it adds.
        root.handlers[:] = handlers
        root.setLevel(level)
    return 0


def find_named_run(parsed: argparse.Namespace, example: str = "") -> tuple[str, list[str]]:
    """The run or checkpoint that a command names, and its other words. `example`: further words of the remedy."""
    from ..base.paths import exists
    from ..runs.folder import newest_run

    named = [word for word in parsed.words if "=" not in word or exists(word)]
    if len(named) != 1:
        text = "needs the folder of a run, or a checkpoint in it" if not named else "takes one run at a time"
        remedy = f"leyden {parsed.verb} {named[0] if named else newest_run() or 'RUN'}{example}"
        raise refuse(parsed.verb, text, " ".join(named) if named else ..., remedy)
    return named[0], [word for word in parsed.words if word != named[0]]


_SIZES = ("launcher", "nodes", "devices_per_node")
"""Keys of the topology that a command which goes on with a run takes from itself, not from the run."""


def _existing(composer: Any, run: "ComposedRun") -> Path | None:
    """The folder of the run, where the command is to go on with it: topology.on_existing=resume.

    Raises:
        ConfigError: the run there has another config.
    """
    from ..base.paths import shorten_path
    from ..compose.composer import run_dir_of
    from ..runs.folder import FROZEN, absolute_paths
    from ..runs.frozen import values_when_frozen

    folder = run_dir_of(run.composed)
    if run.config.topology.on_existing != "resume" or not (folder / FROZEN).exists():
        return None
    before, now = values_when_frozen(folder), absolute_paths(composer.freeze_in(run, folder))
    own = ("topology", "processes", "composition")
    compared = [{key: value for key, value in values.items() if key not in own} for values in (before, now)]
    key = next(_differing(compared[0], compared[1]), None)
    if key is None:
        return folder
    text = f"the run in {shorten_path(folder)} has another {key} than this command"
    raise refuse("topology.on_existing", text, "resume", f"leyden resume {shorten_path(folder)}")


def _differing(one: Any, other: Any, key: str = "") -> Iterator[str]:
    """Keys of two trees of values at which they differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            yield from _differing(one.get(name), other.get(name), f"{key}.{name}" if key else name)
    elif one != other:
        yield key


def go_on(parsed: argparse.Namespace, folder: Path, changes: list[str]) -> int:
    """Resume the run of a folder from its last checkpoint. Returns its exit code; 0 where nothing is left to train."""
    from ..config.ended_runs import end_reason, keys_changed_since_end
    from ..config.job import JobSpec

    ended = end_reason(JobSpec.load(folder), keys_changed_since_end(folder))
    if ended is not None:
        print(f"nothing is left to train: the run {ended}", flush=True)
        return 0
    return resume(argparse.Namespace(**{**vars(parsed), "verb": "resume", "words": [str(folder), *changes]}))


def resume(parsed: argparse.Namespace) -> int:
    from ..base.paths import absolute
    from ..compose.reopen import change, open_run, read_changes, write_changes
    from ..config.ended_runs import refuse_ended
    from ..config.job import JobSpec
    from ..config.target_policy.untrusted_runs import refuse_foreign
    from ..entrypoints.fork_server import prepare
    from ..launch.slurm.submit import refuse_if_queued
    from ..runs.folder import is_sweep, pipeline_of
    from ..runs.frozen import trials_in
    from ..runs.lease import hold_lease, refuse_running
    from ..runs.slurm import STOP_REQUESTED

    named, overrides = find_named_run(parsed)
    if is_sweep(named):
        from ..sweep.resume import resume_sweep

        return resume_sweep(absolute(named), overrides, parsed.config_dir)
    changes = read_changes(overrides, parsed.config_dir)
    run = open_run(named, changes.given)
    change(run, changes)
    config = run.validate_reopened(prepare)
    refuse_foreign(run.folder, run.owners, "resume")
    pipeline = pipeline_of(run.folder)
    for folder in (run.folder, *trials_in(run.folder), *([] if pipeline is None else [pipeline])):
        refuse_running(folder)
    refuse_if_queued(run.folder)
    # a job of Slurm's may begin, and lead, before sbatch returns; the other nodes lead elsewhere
    with ExitStack() as resuming:
        if config.launcher in ("local", "external"):
            resuming.enter_context(hold_lease(run.folder))
        refuse_ended(JobSpec(config, run.folder, "resume", run.checkpoint), changes.dotted)
        resuming.enter_context(write_changes(run, changes))
        (run.folder / STOP_REQUESTED).unlink(missing_ok=True)
        if config.launcher == "node":
            return print_node_command(config, run.checkpoint or run.folder)
        return start_run(JobSpec.load(run.folder, "resume", run.checkpoint))


def node(parsed: argparse.Namespace) -> int:
    from ..compose.reopen import open_run
    from ..config.ended_runs import keys_changed_since_end, refuse_ended
    from ..config.evaluation_data import refuse_without_model
    from ..config.job import JobSpec
    from ..config.target_policy.untrusted_runs import refuse_foreign
    from ..entrypoints.fork_server import prepare_agent
    from ..launch.rendezvous import Rendezvous

    named, overrides = find_named_run(parsed)
    if overrides:
        remedy = f"leyden resume {named} {overrides[0]}, and then the command that it prints"
        raise refuse(overrides[0], "every node reads the frozen config, without overrides", remedy=remedy)
    rendezvous = Rendezvous.parse_hello(parsed.rendezvous, parsed.wait)
    run = open_run(named)
    config = run.validate_reopened(prepare_agent)
    refuse_foreign(run.folder, run.owners, "node")
    if config.launcher != "node":
        text = "this run starts its workers itself, on one machine"
        if config.launcher == "slurm":
            text = "this run is started by Slurm, on all its nodes"
        raise refuse("topology.launcher", text, config.launcher, f"leyden resume {named}")
    job = JobSpec(config, run.folder, "eval" if parsed.eval else "resume", run.checkpoint)
    if job.is_evaluation:
        refuse_without_model(config)
    else:
        refuse_ended(job, keys_changed_since_end(run.folder))
    from ..entrypoints.start import worker_spec
    from ..launch.multi_node import launch

    code = _as_config_error("node", lambda: launch(worker_spec(job), rendezvous))
    if config.doctor is None:
        return code
    from ..diagnostics.doctor.training.run import examine_training

    own = ["leyden", "node", "--rendezvous", str(rendezvous)]
    return examine_training(config, run.folder, code, lambda folder: [*own, str(folder)])
