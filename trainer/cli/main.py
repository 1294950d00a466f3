"""The command `leyden`: verbs and flags. Hydra, torch and lightning are imported only by verbs that need them."""

import argparse
import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ..base.errors import ConfigError, SystemFailure, refuse
from ..base.open_files import open_file_error
from ..compose.limits import in_a_command
from . import inspect_verbs, run_verbs, train_verbs
from .help import help_text, verb_text
from .verbs import VERBS, all_flags, verbs_with


def main(arguments: Sequence[str]) -> int:
    """Run one command. Returns the exit code; a user error is printed to stderr and gives 2."""
    try:
        with in_a_command():
            return _dispatch(_parse_flags(arguments))
    except ConfigError as error:
        print(error.render(), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of standard output has closed it, as in `leyden --cfg job | head`.
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return _refused_path(error)
        failure = error if isinstance(error, SystemFailure) else open_file_error(error)
        if failure is None:
            raise
        print(f"leyden: {failure}", file=sys.stderr)
        return 1


def _refused_path(error: OSError) -> int:
    problem = refuse("PATH", "is too long for the name of a file or folder", str(error.filename), executed=True)
    print(problem.render(), file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    """Parser that raises ConfigError instead of exiting.

    Attributes:
        arguments: the command line.
    """

    arguments: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        from .flags import usage_error

        raise usage_error(message, self.arguments, [flag for action in self._actions for flag in action.option_strings])


def _parser() -> _Parser:
    # absent flags leave no attribute, so that a flag of another verb is noticed
    parser = _Parser(prog="leyden", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", default=[])
    for flag in all_flags().values():
        switch = {} if flag.value else {"action": "store_true"}
        parser.add_argument(*flag.names, **{**switch, **flag.parsing})
    return parser


_WITHOUT = {"wait": 300.0}
"""Defaults of flags other than None and False."""


def _parse_flags(arguments: Sequence[str]) -> argparse.Namespace:
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
        from .known_verbs import no_verb

        raise no_verb(words)
    return words[0], words[1:]


def _refuse_foreign_flags(verb: str, given: Mapping[str, Any]) -> None:
    for flag in all_flags().values():
        owners = verbs_with(flag.key)
        if flag.key in given and owners and verb not in owners:
            text = f"is a flag of leyden {', '.join(owners)}; leyden {verb} has no such flag"
            raise refuse(flag.names[0], text, remedy=f"leyden {verb} --help")


Verb = Callable[[argparse.Namespace], int]
_VERBS: Mapping[str, Verb] = {
    "train": train_verbs.train,
    "eval": run_verbs.evaluate,
    "predict": run_verbs.predict,
    "compare": run_verbs.compare,
    "export": run_verbs.export,
    "resume": train_verbs.resume,
    "node": train_verbs.node,
    "view": inspect_verbs.view,
    "schema": inspect_verbs.schema,
    "topology": inspect_verbs.topology,
    "doctor": inspect_verbs.doctor,
    "plan": inspect_verbs.plan,
    "bench": inspect_verbs.bench,
    "inspect": inspect_verbs.inspect,
    "prepare": inspect_verbs.prepare,
    "manifest": inspect_verbs.manifest,
    "completion": inspect_verbs.completion,
    "find": inspect_verbs.find,
    "status": inspect_verbs.status,
    "stop": inspect_verbs.stop,
}


def _dispatch(parsed: argparse.Namespace) -> int:
    if parsed.version:
        from ..base.versions import version_text

        return _print(version_text())
    if parsed.help or parsed.verb == "help":
        return _help(parsed)
    if (parsed.resolve or parsed.package) and not parsed.cfg:
        raise refuse("--resolve" if parsed.resolve else "--package", "goes with --cfg only", remedy="--cfg job")
    verb = _VERBS[parsed.verb]
    if VERBS[parsed.verb].starts_workers and not (parsed.cfg or parsed.info):
        verb = _start_once(parsed, verb)
    if not parsed.trust:
        return verb(parsed)
    from ..config.target_policy.untrusted_runs import trust

    with trust():
        return verb(parsed)


def _start_once(parsed: argparse.Namespace, verb: Verb) -> Verb:
    """The verb, or its part for one of several processes that another program has started.

    Raises:
        ConfigError: there are several, and the command line does not say so; or this is no Linux.
    """
    if sys.platform != "linux":
        text = "needs Linux: processes are ended, watched and bound by its means"
        remedy = "a Linux machine, container or WSL2; --cfg, schema, status, compare and view work here"
        raise refuse(f"leyden {parsed.verb}", text, sys.platform, remedy)
    from ..launch.external.starters import EXTERNAL, refuse_starter

    # on the command line, since rank 0 alone reads YAML
    if parsed.verb in ("train", "resume") and EXTERNAL in parsed.words:
        from .external import run_external

        return partial(run_external, verb=verb)
    refuse_starter(os.environ)
    return verb


def _help(parsed: argparse.Namespace) -> int:
    if parsed.config_dir is not None and not Path(parsed.config_dir).is_dir():
        raise refuse("--config-dir", "there is no such folder", parsed.config_dir, "--config-dir FOLDER")
    if parsed.help and parsed.verb_typed:
        return _print(verb_text(parsed.verb))
    if parsed.help or not parsed.words:
        return _print(help_text(parsed.config_dir))
    from .help_topics import topic_page

    return _print("\n\n".join(topic_page(topic, parsed.config_dir) for topic in parsed.words))


def _print(text: str) -> int:
    print(text)
    return 0
