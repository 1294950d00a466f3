"""Verbs that train or evaluate: train, eval, resume, node."""

import argparse
import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import CannotStart, ConfigError, refuse

if TYPE_CHECKING:
    from ..config.compose import Run


def train(parsed: argparse.Namespace) -> int:
    from ..config.compose import Composer

    composer = Composer(parsed.config_dir, parsed.config_name)
    if parsed.cfg:
        return _print_config(composer, parsed)
    if parsed.info:
        return _print_info(composer, parsed)
    return _sweep(composer, parsed.words) if parsed.multirun else _start_new(composer, parsed.words)


def _sweep(composer: Any, overrides: list[str]) -> int:
    from ..sweep.sweep import Sweep

    return Sweep(composer, overrides).run()


def _start_new(composer: Any, overrides: list[str]) -> int:
    run = composer.run(overrides)
    # not above: a mistake in the config does not wait for them
    from ..base.paths import shown
    from ..runs.folder import freeze, refuse_frozen
    from ..runs.lease import hold_lease
    from ..sweep.hopping_plan import is_pipeline

    if run.is_sweep:
        return _sweep(composer, overrides)
    if is_pipeline(run.composed):
        text = "trains the models of a sweep concurrently, and this is one run"
        raise refuse("hydra/launcher", text, "pipeline", "leyden -m hydra/launcher=pipeline ...")
    claim = composer.claim(run, overrides)
    folder = claim.folder
    with ExitStack() as lease:
        # a folder named by the user may be another start's, too: only its leader writes into it
        lease.enter_context(hold_lease(folder))
        refuse_frozen(folder, "hydra.run.dir")
        try:
            freeze(folder, composer.frozen_in(run, folder))
            composer.write_dot_hydra(run, folder)
            _announce(run, overrides)
            if run.config.launcher == "node":
                print(f"run folder: {shown(folder)}")
                return print_node_command(run.config, folder)
            if run.config.launcher == "slurm":
                # the job may begin, and lead, before sbatch returns
                lease.close()
            return start_run(run.config, folder, "train", None)
        except ConfigError as error:
            claim.release()
            raise composer.with_remedies(error.located(composer.origin(overrides).where), overrides) from None


def start_run(config: Any, folder: Path, verb: str, checkpoint: Path | None) -> int:
    from ..base.paths import shown

    if config.launcher == "slurm":
        from ..launch.slurm.submit import submit
        from ..launch.worker_group import JobSpec

        code = submit(JobSpec(config, folder, verb, checkpoint))
        if verb == "train":
            print(f"run folder: {shown(folder)}", flush=True)
        return code
    from ..entrypoints.start import start

    return _as_config_error(verb, lambda: start(folder, verb, checkpoint))


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
    from ..base.paths import shown
    from ..config.target_policy.untrusted_runs import is_trusted

    nodes, flag = config.topology.nodes, f"{flag}--trust " if is_trusted() else flag
    print(f"on each of the {nodes} hosts, with the same HOST, one of them, everywhere:")
    print(f"  leyden node {flag}--rendezvous HOST:29400 {shown(named)}")
    return 0


def _announce(run: "Run", overrides: list[str]) -> None:
    from ..config.checks import slow_settings

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

    from ..config.compose import unresolved

    composed = composer.composed(parsed.words)
    whole = parsed.package in (None, "_global_")
    if not whole and OmegaConf.select(composed, parsed.package, throw_on_missing=False) is None:
        raise refuse("--package", "there is no such key in the config", parsed.package)
    try:
        composer.hydra.show_cfg(composer.config_name, parsed.words, parsed.cfg, parsed.package, parsed.resolve)
    except OmegaConfBaseException as error:
        raise unresolved(error, composed).located(composer.origin(parsed.words).where) from None
    return 0


def _print_info(composer: Any, parsed: argparse.Namespace) -> int:
    composer.composed(parsed.words)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        composer.hydra.show_info(parsed.info, composer.config_name, parsed.words)
    finally:
        # Hydra prints by a handler of the root logger, which it adds.
        root.handlers[:] = handlers
        root.setLevel(level)
    return 0


def _named_run(parsed: argparse.Namespace) -> tuple[str, list[str]]:
    from ..base.paths import exists

    named = [word for word in parsed.words if "=" not in word or exists(word)]
    if len(named) != 1:
        text = "needs the folder of a run, or a checkpoint in it" if not named else "takes one run at a time"
        raise refuse(parsed.verb, text, " ".join(named) if named else ..., f"leyden {parsed.verb} outputs/DAY/TIME")
    return named[0], [word for word in parsed.words if word != named[0]]


def evaluate(parsed: argparse.Namespace) -> int:
    from ..config.reopen import DEVICE_KIND, change, evaluated_on, open_run, read_changes

    named, overrides = _named_run(parsed)
    others = [override for override in overrides if not override.startswith(f"{DEVICE_KIND}=")]
    if others:
        raise refuse(others[0], f"a run is evaluated as it was trained; only {DEVICE_KIND} may differ",
                     remedy=f"leyden init_from={named} trainer.max_epochs=... for another one")  # fmt: skip
    changes = read_changes(overrides)
    run = open_run(named, changes.given)
    change(run, changes)
    config = run.validated()
    if overrides and config.launcher != "local":
        text = "may differ only where this command starts the workers"
        raise refuse(DEVICE_KIND, text, config.topology.device.kind, f"leyden eval {named}")
    if config.launcher == "node":
        return print_node_command(config, run.checkpoint or run.folder, "--eval ")
    with evaluated_on(config.topology.device.kind if overrides else None):
        return start_run(config, run.folder, "eval", run.checkpoint)


def resume(parsed: argparse.Namespace) -> int:
    from ..base.paths import absolute
    from ..config.ended_runs import refuse_ended
    from ..config.reopen import change, open_run, read_changes, written_changes
    from ..launch.slurm.submit import refuse_if_queued
    from ..runs.folder import is_sweep, pipeline_of
    from ..runs.frozen import trials_in
    from ..runs.lease import hold_lease, refuse_running
    from ..runs.slurm import STOP_REQUESTED

    named, overrides = _named_run(parsed)
    if is_sweep(named):
        from ..sweep.resume import resume_sweep

        return resume_sweep(absolute(named), overrides, parsed.config_dir)
    changes = read_changes(overrides, parsed.config_dir)
    run = open_run(named, changes.given)
    change(run, changes)
    config = run.validated()
    pipeline = pipeline_of(run.folder)
    for folder in (run.folder, *trials_in(run.folder), *([] if pipeline is None else [pipeline])):
        refuse_running(folder)
    refuse_if_queued(run.folder)
    # a job of Slurm's may begin, and lead, before sbatch returns; the other nodes lead elsewhere
    with ExitStack() as resuming:
        if config.launcher == "local":
            resuming.enter_context(hold_lease(run.folder))
        refuse_ended(run.folder, config, run.checkpoint, changes.dotted)
        resuming.enter_context(written_changes(run, changes))
        (run.folder / STOP_REQUESTED).unlink(missing_ok=True)
        if config.launcher == "node":
            return print_node_command(config, run.checkpoint or run.folder)
        return start_run(config, run.folder, "resume", run.checkpoint)


def node(parsed: argparse.Namespace) -> int:
    from ..config.ended_runs import changed_since_end, refuse_ended
    from ..config.reopen import open_run
    from ..launch.rendezvous import Rendezvous

    named, overrides = _named_run(parsed)
    if overrides:
        remedy = f"leyden resume {named} {overrides[0]}, and then the command that it prints"
        raise refuse(overrides[0], "every node reads the frozen config, without overrides", remedy=remedy)
    rendezvous = Rendezvous.parsed(parsed.rendezvous, parsed.wait)
    run = open_run(named)
    config = run.validated()
    if config.launcher != "node":
        text = "this run starts its workers itself, on one machine"
        if config.launcher == "slurm":
            text = "this run is started by Slurm, on all its nodes"
        raise refuse("topology.launcher", text, config.launcher, f"leyden resume {named}")
    if not parsed.eval:
        refuse_ended(run.folder, config, run.checkpoint, changed_since_end(run.folder))
    from ..entrypoints.start import job_of
    from ..launch.multi_node import launch

    verb = "eval" if parsed.eval else "resume"
    return _as_config_error("node", lambda: launch(job_of(config, run.folder, verb, run.checkpoint), rendezvous))
