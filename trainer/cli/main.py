"""The command `leyden`: verbs and flags. Hydra, torch and lightning are imported only by verbs that need them."""

import argparse
import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..base.errors import ConfigError, listed, nearest, refuse
from . import inspect_verbs, train_verbs
from .help import help_text, verb_text
from .verbs import VERBS, all_flags, verbs_with


def entry_point() -> NoReturn:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command. Returns the exit code; a user error is printed to stderr and gives 2."""
    try:
        return _dispatch(_parsed(arguments))
    except ConfigError as error:
        print(error.rendered(), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of standard output has closed it, as in `leyden --cfg job | head`.
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return _refused_path(error)


def _refused_path(error: OSError) -> int:
    problem = refuse("PATH", "is too long for the name of a file or folder", str(error.filename), executed=True)
    print(problem.rendered(), file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    arguments: Sequence[str] = ()
    """Parser that raises ConfigError instead of exiting."""

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


_VERBS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "train": train_verbs.train,
    "eval": train_verbs.evaluate,
    "resume": train_verbs.resume,
    "node": train_verbs.node,
    "view": inspect_verbs.view,
    "schema": inspect_verbs.schema,
    "topology": inspect_verbs.topology,
    "doctor": inspect_verbs.doctor,
    "status": inspect_verbs.status,
    "stop": inspect_verbs.stop,
}


def _dispatch(parsed: argparse.Namespace) -> int:
    if parsed.version:
        from importlib.metadata import version

        return _print(f"leyden {version('leyden')}")
    if parsed.help or parsed.verb == "help":
        return _help(parsed)
    if (parsed.resolve or parsed.package) and not parsed.cfg:
        raise refuse("--resolve" if parsed.resolve else "--package", "goes with --cfg only", remedy="--cfg job")
    if VERBS[parsed.verb].starts_workers and not (parsed.cfg or parsed.info):
        from ..launch.foreign_launchers import refuse_foreign_launcher

        refuse_foreign_launcher(os.environ)
    if not parsed.trust:
        return _VERBS[parsed.verb](parsed)
    from ..config.target_policy.untrusted_runs import trust

    with trust():
        return _VERBS[parsed.verb](parsed)


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
