"""Pages of `leyden --help`. Imports neither Hydra nor torch."""

import textwrap
from collections.abc import Mapping, Sequence

from ..base.errors import WIDTH
from ..config.reference.group_choices import group_choices
from .verbs import CFG, CONFIG_DIR, HELP, MULTIRUN, VERBS, VERSION, Flag

WIDEST = 34
"""Width of the first column; longer entries get a line of their own."""

EXAMPLES = """\
  leyden                                                  LeNet-5 on handwritten digits
  leyden dataset=cifar10 dataset.root=PATH model=resnet20 trainer.max_epochs=3
  leyden topology.devices_per_node=2 strategy=ddp         two workers
  leyden -m model=lenet5,mlp optimizer.lr=0.1,0.01        a sweep of four
  leyden topology=slurm topology.device.kind=cuda topology.nodes=4 strategy=ddp     a job in Slurm's queue
  leyden --config-dir MYCONF model=mine                   your own YAML and class"""


def help_text(config_dir: str | None = None) -> str:
    """Verbs, groups with their choices, flags and examples."""
    groups = {name: ", ".join(choices) for name, choices in group_choices(config_dir).items()}
    return "\n".join(
        [
            "leyden [VERB] [GROUP=CHOICE ...] [KEY=VALUE ...]",
            "",
            "Verbs",
            *columns({f"{name} {verb.words}".rstrip(): verb.text for name, verb in VERBS.items()}),
            "",
            "Groups, each of which can be changed alone",
            *columns(groups),
            "",
            "Keys: leyden help GROUP | GROUP=CHOICE | KEY explains them. +KEY=VALUE adds a constructor argument,",
            "      GROUP=null takes a group away.",
            "",
            "Flags used most; all of a verb: leyden VERB --help",
            *_flags((MULTIRUN, CFG, CONFIG_DIR)),
            "",
            "Examples",
            EXAMPLES,
        ]
    )


def verb_text(name: str) -> str:
    """The page of one verb."""
    verb = VERBS[name]
    examples = ["", "Examples", *(f"  {line}" for line in verb.examples)] if verb.examples else []
    usage = f"leyden {'[train]' if name == 'train' else name} {'[FLAGS] ' if verb.flags else ''}{verb.words}".rstrip()
    return "\n".join([usage, "", f"  {verb.text}", "", "Flags", *_flags(verb.flags), *examples])


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
