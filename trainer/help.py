"""What `leyden --help` says. Neither Hydra nor torch is imported for it."""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

VERBS = {
    "train": "train what the overrides say (the default; the word may be left out)",
    "eval": "RUN: test a finished run, or one checkpoint of it",
    "resume": "RUN or SWEEP [key=value ...]: go on with a run in its own folder, or with a sweep's unfinished trials",
    "view": "[DIR] [--port N]: TensorBoard on DIR (outputs/), on this machine only",
    "schema": "[GROUP]: JSON Schema of the config, for editors",
    "status": "[FOLDER ...] [--json]: how the runs there (outputs/) stand: step, time left, what went wrong",
    "stop": "RUN or SWEEP: ask it to save and end, and wait until it has",
    "node": "--rendezvous HOST:PORT [--wait S] [--eval] RUN: this host's part of a run over several",
    "topology": "print this machine as a file for a folder topology/ of your own",
    "doctor": "[topology=NAME ...] [--write FILE.yaml]: measure devices and links, name the slow ones",
}

FLAGS = {
    "--cfg job|hydra|all": "print the composed config and leave; --resolve resolves it, --package KEY prints a part",
    "--info [WHAT]": "print how it was composed: defaults-tree, defaults, config, searchpath, plugins, all",
    "-m, --multirun": "a sweep: every combination of key=a,b,c",
    "-cd, --config-dir DIR": "a folder of your own YAML files, laid out like the groups below",
    "-cn, --config-name NAME": "start from NAME.yaml instead of train.yaml",
    "-h, --help; --version": "",
}

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
            *_columns(VERBS),
            "",
            "Groups, each of which can be changed alone",
            *_columns(groups),
            "",
            "Keys: leyden --cfg job prints all. +KEY=VALUE adds a constructor argument, GROUP=null takes a group away.",
            "",
            "Flags",
            *_columns(FLAGS),
            "",
            "Examples",
            EXAMPLES,
        ]
    )


def group_choices(config_dir: str | None = None) -> dict[str, list[str]]:
    """The config groups and the YAML files in each, the user's included."""
    roots: list[Traversable] = [resources.files("leyden.conf")]
    if config_dir is not None and Path(config_dir).is_dir():
        roots.append(Path(config_dir))
    found: dict[str, set[str]] = {}
    for root in roots:
        for group in root.iterdir():
            if group.is_dir() and not group.name.startswith(("_", ".")):
                files = {file.name.removesuffix(".yaml") for file in group.iterdir() if file.name.endswith(".yaml")}
                found.setdefault(group.name, set()).update(files)
    return {group: sorted(found[group]) for group in sorted(found) if found[group]}


def _columns(rows: dict[str, str]) -> list[str]:
    width = max(map(len, rows))
    return [f"  {name:<{width}}  {text}".rstrip() for name, text in rows.items()]
