"""Pages of `leyden --help`. Imports neither Hydra nor torch."""

import textwrap
from collections.abc import Mapping, Sequence

from ..base.errors import WIDTH, shorten_value
from ..compose.reference.group_choices import group_choices
from .verbs import CFG, CONFIG_DIR, HELP, MULTIRUN, VERBS, VERSION, Flag

WIDEST = 34
"""Width of the first column; longer entries get a line of their own."""

EXAMPLES = """\
  leyden                                                  LeNet-5 on handwritten digits
  leyden topology.devices_per_node=2 strategy=ddp         two workers
  leyden -m model=lenet5,mlp optimizer.lr=0.05,0.02       a sweep of four
  leyden --config-dir MYCONF model=mine                   your own YAML and class"""


def help_text(config_dir: str | None = None) -> str:
    """Verbs, groups with their choices, flags and examples."""
    groups = {name: ", ".join(_fold_sizes(choices)) for name, choices in group_choices(config_dir).items()}
    return "\n".join(
        [
            "leyden [VERB] [GROUP=CHOICE ...] [KEY=VALUE ...]",
            "",
            "Verbs",
            *columns({_in_a_line(f"{name} {verb.words}".rstrip()): verb.text for name, verb in VERBS.items()}),
            "",
            "Groups, each of which can be changed alone",
            *columns(groups),
            "",
            "Keys: leyden help GROUP|KEY. +KEY=VALUE adds a constructor argument, GROUP=null takes a group away.",
            "",
            "Flags used most; all of a verb: leyden VERB --help",
            *_flags((MULTIRUN, CFG, CONFIG_DIR)),
            "",
            "Examples",
            EXAMPLES,
        ]
    )


def _in_a_line(usage: str) -> str:
    """The usage of a verb without its overrides, where it is too long for the first column."""
    return usage if len(usage) <= WIDEST else usage.removesuffix(" [KEY=VALUE ...]")


def _fold_sizes(choices: Sequence[str]) -> list[str]:
    """Choices of a group, NAME and NAME_small as one."""
    small = {name for name in choices if name.removesuffix("_small") in choices and name.endswith("_small")}
    return [f"{name}[_small]" if f"{name}_small" in small else name for name in choices if name not in small]


def verb_text(name: str) -> str:
    """The page of one verb."""
    verb = VERBS[name]
    examples = ["", "Examples", *(f"  {line}" for line in verb.examples)] if verb.examples else []
    usage = f"leyden {'[train]' if name == 'train' else name} {'[FLAGS] ' if verb.flags else ''}{verb.words}".rstrip()
    return "\n".join(
        [usage, "", f"  {verb.text}", *_keys(name, verb.keys), "", "Flags", *_flags(verb.flags), *examples]
    )


def _keys(verb: str, files: Sequence[str]) -> list[str]:
    """Keys of a verb's own, with their defaults."""
    if not files:
        return []
    from ..compose.reference.yaml_library import Library

    lines: list[str] = []
    for file in files:
        found = Library().file(file).keys.items()
        keys = {name: key for name, key in found if name != "_target_" and not isinstance(key.value, dict)}
        of = f" of {verb} {file.removeprefix(f'{verb}_')}" if file != verb else ""
        rows = {f"{name}={shorten_value(key.value)}": key.comment for name, key in keys.items()}
        lines += ["", f"Keys{of}, beside those of the config", *columns(rows)]
    return lines


def _flags(flags: Sequence[Flag]) -> list[str]:
    return columns({flag.usage: flag.text for flag in (*flags, HELP, VERSION)})


def columns(rows: Mapping[str, str]) -> list[str]:
    """Two indented columns, the second wrapped."""
    width = min(max(map(len, rows), default=0), WIDEST)
    lines: list[str] = []
    for name, text in rows.items():
        first, *others = textwrap.wrap(text, WIDTH - width - 4, break_long_words=False, break_on_hyphens=False) or [""]
        own_line = len(name) > width
        lines += [f"  {name}", f"  {'':{width}}  {first}"] if own_line else [f"  {name:<{width}}  {first}"]
        lines += [f"  {'':{width}}  {other}" for other in others]
    return [line.rstrip() for line in lines]
