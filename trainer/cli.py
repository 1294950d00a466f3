"""The command `leyden`: verbs and flags. Hydra, torch and lightning are imported only by those that need them."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import CannotStart, ConfigError, listed, nearest, refuse
from .help import help_text, verb_text
from .verbs import VERBS, all_flags, verbs_with

if TYPE_CHECKING:
    from .compose import Run


def entry_point() -> NoReturn:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command. Returns the exit code; a mistake of the user's is told on stderr and gives 2."""
    try:
        return _dispatch(_parsed(arguments))
    except ConfigError as error:
        print(error.rendered(), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has left, as in `leyden --cfg job | head`.
        sys.stderr.close()
        return 0


class _Parser(argparse.ArgumentParser):
    arguments: Sequence[str] = ()
    """What is parsed."""

    def error(self, message: str) -> NoReturn:
        from .flags import unusable

        raise unusable(message, self.arguments, [flag for action in self._actions for flag in action.option_strings])


def _parser() -> _Parser:
    # what was not given leaves no attribute, so that a flag of another verb is seen
    parser = _Parser(prog="leyden", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", default=[])
    for flag in all_flags().values():
        switch = {} if flag.value else {"action": "store_true"}
        parser.add_argument(*flag.names, **{**switch, **flag.parsing})
    return parser


_WITHOUT = {"wait": 300.0}
"""Values of flags that are not given; None or False otherwise."""


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    parser.arguments = arguments
    given = vars(parser.parse_intermixed_args(list(arguments)))
    verb, words = _verb(given["words"])
    if "help" not in given:
        _refuse_foreign_flags(verb, given)
    absent = {key: _WITHOUT.get(key, None if flag.value else False) for key, flag in all_flags().items()}
    typed = words != given["words"]
    return argparse.Namespace(**{**absent, **given, "verb": verb, "words": words, "verb_typed": typed})


def _verb(words: list[str]) -> tuple[str, list[str]]:
    if not words or "=" in words[0] or words[0].startswith("~"):
        return "train", words
    if words[0] not in VERBS:
        close = nearest(words[0], VERBS)
        meant = f"; did you mean {close}?" if close else ""
        raise refuse(words[0], f"is neither a verb nor key=value{meant}\nthe verbs are {listed(list(VERBS))}",
                     remedy=f"leyden {close}" if close else "leyden --help")  # fmt: skip
    return words[0], words[1:]


def _refuse_foreign_flags(verb: str, given: Mapping[str, Any]) -> None:
    for flag in all_flags().values():
        owners = verbs_with(flag.key)
        if flag.key in given and owners and verb not in owners:
            text = f"is a flag of leyden {', '.join(owners)}; leyden {verb} has no such flag"
            raise refuse(flag.names[0], text, remedy=f"leyden {verb} --help, which lists its own")


def _dispatch(parsed: argparse.Namespace) -> int:
    if parsed.version:
        from importlib.metadata import version

        return _print(f"leyden {version('leyden')}")
    if parsed.help or parsed.verb == "help":
        return _help(parsed)
    if (parsed.resolve or parsed.package) and not parsed.cfg:
        raise refuse("--resolve" if parsed.resolve else "--package", "goes with --cfg only", remedy="--cfg job")
    if VERBS[parsed.verb].starts_workers and not (parsed.cfg or parsed.info):
        from .launch.foreign import refuse_foreign_launcher

        refuse_foreign_launcher(os.environ)
    verbs = {"train": _train, "eval": _eval, "resume": _resume, "view": _view, "schema": _schema,
             "topology": _topology, "doctor": _doctor, "node": _node, "status": _status, "stop": _stop}  # fmt: skip
    return verbs[parsed.verb](parsed)


def _help(parsed: argparse.Namespace) -> int:
    if parsed.config_dir is not None and not Path(parsed.config_dir).is_dir():
        raise refuse("--config-dir", "there is no such folder", parsed.config_dir, "--config-dir FOLDER")
    if parsed.help and parsed.verb_typed:
        return _print(verb_text(parsed.verb))
    if parsed.help or not parsed.words:
        return _print(help_text(parsed.config_dir))
    from .help_topics import explained

    return _print("\n\n".join(explained(topic, parsed.config_dir) for topic in parsed.words))


def _print(text: str) -> int:
    print(text)
    return 0


def _train(parsed: argparse.Namespace) -> int:
    from .compose import Composer

    composer = Composer(parsed.config_dir, parsed.config_name)
    if parsed.cfg:
        return _print_config(composer, parsed)
    if parsed.info:
        return _print_info(composer, parsed)
    return _sweep(composer, parsed.words) if parsed.multirun else _start_new(composer, parsed.words)


def _sweep(composer: Any, overrides: list[str]) -> int:
    from .sweep import Sweep

    return Sweep(composer, overrides).run()


def _start_new(composer: Any, overrides: list[str]) -> int:
    from .origin import shown
    from .pipeline.plan import is_pipeline
    from .run_folder import freeze

    run = composer.run(overrides)
    if run.is_sweep:
        return _sweep(composer, overrides)
    if is_pipeline(run.composed):
        text = "trains the models of a sweep side by side, and this is one run"
        raise refuse("hydra/launcher", text, "pipeline", "leyden -m hydra/launcher=pipeline ...")
    claim = composer.claim(run, overrides)
    folder = claim.folder
    try:
        freeze(folder, composer.frozen_in(run, folder))
        composer.write_dot_hydra(run, folder)
        _announce(run, overrides)
        if run.config.launcher == "node":
            print(f"run folder: {shown(folder)}")
            return _print_node_command(run.config, folder)
        return _started(run.config, folder, "train", None)
    except ConfigError as error:
        claim.release()
        raise composer.remedied(error.located(composer.origin(overrides).where), overrides) from None


def _started(config: Any, folder: Path, verb: str, checkpoint: Path | None) -> int:
    from .origin import shown

    if config.launcher == "slurm":
        from .launch.attempt import Job
        from .launch.slurm.queue import queue

        code = queue(Job(config, folder, verb, checkpoint))
        if verb == "train":
            print(f"run folder: {shown(folder)}", flush=True)
        return code
    from .launch import start

    return _told_as_mistake(verb, lambda: start(folder, verb, checkpoint))


def _told_as_mistake(verb: str, run: Callable[[], int]) -> int:
    """What `run` returns; what only building the parts could show becomes one message."""
    try:
        return run()
    except ConfigError:
        raise
    except CannotStart as error:
        raise error.as_config_error() or refuse(f"leyden {verb}", str(error)) from error
    except ValueError as error:
        raise refuse(f"leyden {verb}", str(error)) from error


def _print_node_command(config: Any, named: Path, flag: str = "") -> int:
    from .origin import shown

    nodes = config.topology.nodes
    print(f"on each of the {nodes} hosts, HOST being one of them and the same for all:")
    return _print(f"  leyden node {flag}--rendezvous HOST:29400 {shown(named)}")


def _announce(run: "Run", overrides: list[str]) -> None:
    from .checks import doubtful
    from .leftover_keys import notices

    chosen = run.composed.hydra.runtime.choices
    words = ["dataset", "model", "strategy", "topology", *(["experiment"] if chosen.get("experiment") else [])]
    print("  ".join(f"{group}={chosen.get(group) or 'null'}" for group in words))
    if overrides:
        print(f"overridden: {' '.join(overrides)}")
    for line in notices(run.dropped):
        print(line)
    if run.config.launcher == "node" and run.composed.topology.device.kind == "auto":
        print(f"topology.device.kind: {run.config.topology.device.kind} on every host, as on this one")
    sys.stdout.flush()
    for problem in doubtful(run.config):
        print("leyden: warning", *problem.lines(), sep="\n", file=sys.stderr, flush=True)


def _print_config(composer: Any, parsed: argparse.Namespace) -> int:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from .compose import unresolved

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
        # Hydra prints through a handler that it adds to the root logger.
        root.handlers[:] = handlers
        root.setLevel(level)
    return 0


def _named_run(parsed: argparse.Namespace) -> tuple[str, list[str]]:
    named = [word for word in parsed.words if "=" not in word or Path(word).exists()]
    if len(named) != 1:
        text = "needs the folder of a run, or a checkpoint in it" if not named else "takes one run at a time"
        raise refuse(parsed.verb, text, " ".join(named) if named else ..., f"leyden {parsed.verb} outputs/DAY/TIME")
    return named[0], [word for word in parsed.words if word != named[0]]


def _eval(parsed: argparse.Namespace) -> int:
    from .rerun import DEVICE_KIND, change, evaluated_on, opened, read_changes

    named, overrides = _named_run(parsed)
    others = [override for override in overrides if not override.startswith(f"{DEVICE_KIND}=")]
    if others:
        raise refuse(others[0], f"a run is evaluated as it was trained; only {DEVICE_KIND} may differ",
                     remedy=f"leyden init_from={named} trainer.max_epochs=... for another one")  # fmt: skip
    changes = read_changes(overrides)
    run = opened(named, changes.given)
    change(run, changes)
    config = run.judged()
    if overrides and config.launcher != "local":
        text = "may differ only where this command starts the workers"
        raise refuse(DEVICE_KIND, text, config.topology.device.kind, f"leyden eval {named}")
    if config.launcher == "node":
        return _print_node_command(config, run.checkpoint or run.folder, "--eval ")
    with evaluated_on(config.topology.device.kind if overrides else None):
        return _started(config, run.folder, "eval", run.checkpoint)


def _resume(parsed: argparse.Namespace) -> int:
    from .config import trials_in
    from .ended import refuse_ended
    from .launch.slurm.queue import refuse_second
    from .pipeline.membership import pipeline_of
    from .presence import refuse_led
    from .rerun import change, opened, read_changes, written_changes
    from .run_folder import absolute, is_sweep
    from .slurm_jobs import STOP_REQUESTED

    named, overrides = _named_run(parsed)
    if is_sweep(named):
        from .sweep_resume import resume_sweep

        return resume_sweep(absolute(named), overrides, parsed.config_dir)
    changes = read_changes(overrides, parsed.config_dir)
    run = opened(named, changes.given)
    change(run, changes)
    config = run.judged()
    pipeline = pipeline_of(run.folder)
    for folder in (run.folder, *trials_in(run.folder), *([] if pipeline is None else [pipeline])):
        refuse_led(folder)
    refuse_second(run.folder)
    refuse_ended(run.folder, config, run.checkpoint, changes.dotted)
    with written_changes(run, changes):
        (run.folder / STOP_REQUESTED).unlink(missing_ok=True)
        if config.launcher == "node":
            return _print_node_command(config, run.checkpoint or run.folder)
        return _started(config, run.folder, "resume", run.checkpoint)


def _node(parsed: argparse.Namespace) -> int:
    from .ended import changed_since_end, refuse_ended
    from .launch.meeting import Rendezvous
    from .rerun import opened

    named, overrides = _named_run(parsed)
    if overrides:
        remedy = f"leyden resume {named} {overrides[0]}, and then the command that it prints"
        raise refuse(overrides[0], "every node obeys the run as it was frozen, without overrides", remedy=remedy)
    rendezvous = Rendezvous.parsed(parsed.rendezvous, parsed.wait)
    run = opened(named)
    config = run.judged()
    if config.launcher != "node":
        text = "this run starts its workers itself, on one machine"
        if config.launcher == "slurm":
            text = "this run is started by Slurm, on all its nodes"
        raise refuse("topology.launcher", text, config.launcher, f"leyden resume {named}")
    if not parsed.eval:
        refuse_ended(run.folder, config, run.checkpoint, changed_since_end(run.folder))
    from .launch.node import launch

    verb = "eval" if parsed.eval else "resume"
    return _told_as_mistake("node", lambda: launch(config, run.folder, verb, run.checkpoint, rendezvous))


def _status(parsed: argparse.Namespace) -> int:
    from .status import status

    return status(parsed.words, parsed.json)


def _stop(parsed: argparse.Namespace) -> int:
    from .stop import stop

    if len(parsed.words) != 1:
        text = "needs the folder of a run or of a sweep" if not parsed.words else "takes one run or sweep at a time"
        raise refuse("stop", text, " ".join(parsed.words) or ..., "leyden stop outputs/DAY/TIME")
    return stop(parsed.words[0])


def _doctor(parsed: argparse.Namespace) -> int:
    from .compose import Composer
    from .doctor.start import frozen_examination

    config, claimed = frozen_examination(Composer(parsed.config_dir), parsed.words, parsed.write)
    if config.launcher == "node":
        return _print_node_command(config, claimed.folder)
    try:
        return _started(config, claimed.folder, "train", None)
    except ConfigError:
        claimed.release()
        raise


def _view(parsed: argparse.Namespace) -> int:
    if len(parsed.words) > 1:
        raise refuse("view", "takes one folder", " ".join(parsed.words), f"leyden view {parsed.words[0]}")
    folder = Path(parsed.words[0] if parsed.words else "outputs")
    if not folder.is_dir():
        raise refuse("view", "there is no such folder", str(folder), "leyden view FOLDER of a run, a sweep or all runs")
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "localhost"]
    port = ["--port", str(parsed.port)] if parsed.port is not None else []
    sys.stdout.flush()
    # In place of this process, so that whatever ends the command ends TensorBoard.
    os.execv(sys.executable, [*command, *port])


def _schema(parsed: argparse.Namespace) -> int:
    from .editor_schema import editor_schema

    return _print(json.dumps(editor_schema(parsed.words[0] if parsed.words else None), indent=2))


def _topology(parsed: argparse.Namespace) -> int:
    from .discovery.as_yaml import as_topology
    from .discovery.machine import discovered

    if parsed.words:
        raise refuse("topology", "prints the machine that it runs on, and takes no words", " ".join(parsed.words),
                     f"leyden topology={parsed.words[0]} to train on a topology")  # fmt: skip
    print(as_topology(discovered()), end="")
    return 0
