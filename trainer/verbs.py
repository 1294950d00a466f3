"""The verbs of `leyden` and the flags of each, as data: the parser and the help pages are made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Flag:
    """An option of the command line.

    Args:
        names: as typed, the long one first.
        value: what stands for its value in help; "" for a switch.
        text: one line of explanation.
        parsing: further keywords of argparse's `add_argument`.
    """

    names: tuple[str, ...]
    value: str
    text: str
    parsing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its attribute of the parsed arguments."""
        return self.names[0].removeprefix("--").replace("-", "_")

    @property
    def usage(self) -> str:
        """As the help pages show it."""
        return f"{', '.join(reversed(self.names))} {self.value}".rstrip()


@dataclass(frozen=True)
class Verb:
    """A verb of the command line.

    Args:
        words: what may follow it, flags aside.
        text: one line of explanation.
        flags: those that it takes, besides --help and --version.
        examples: command lines.
        starts_workers: whether it starts or submits all processes of a run, and so must be started once itself.
    """

    words: str
    text: str
    flags: tuple[Flag, ...] = ()
    examples: Sequence[str] = ()
    starts_workers: bool = False


_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
CFG = Flag(
    ("--cfg", "-c"), "job|hydra|all", "print the composed config and leave", {"choices": ["job", "hydra", "all"]}
)
RESOLVE = Flag(("--resolve",), "", "with --cfg: interpolations replaced by their values")
PACKAGE = Flag(("--package", "-p"), "KEY", "with --cfg: this part of it alone")
INFO = Flag(("--info", "-i"), "[WHAT]", f"print how the config is composed: {', '.join(_INFO)}",
            {"const": "all", "nargs": "?", "choices": _INFO})  # fmt: skip
MULTIRUN = Flag(("--multirun", "-m"), "", "a sweep: every combination of key=a,b,c")
CONFIG_DIR = Flag(("--config-dir", "-cd"), "DIR", "a folder of your own YAML files, laid out like the groups")
CONFIG_NAME = Flag(("--config-name", "-cn"), "NAME", "start from NAME.yaml instead of train.yaml")
PORT = Flag(("--port",), "N", "TensorBoard's port; without it 6006", {"type": int})
JSON = Flag(("--json",), "", "for programs: one list of objects")
WRITE = Flag(("--write",), "FILE.yaml", "write the topology with the measured figures in place")
RENDEZVOUS = Flag(("--rendezvous",), "HOST:PORT", "where the hosts find each other: an address of one of them")
WAIT = Flag(("--wait",), "S", "seconds to wait for the other hosts; without it 300", {"type": float})
EVAL = Flag(("--eval",), "", "evaluate the run in place of training it")
HELP = Flag(("--help", "-h"), "", "of `leyden`, or of one verb")
VERSION = Flag(("--version",), "", "")

VERBS = {
    "train": Verb(
        "[KEY=VALUE ...]", "train what the overrides say (the default; the word may be left out)",
        (CFG, RESOLVE, PACKAGE, INFO, MULTIRUN, CONFIG_DIR, CONFIG_NAME), starts_workers=True, examples=(
            "leyden dataset=cifar10 dataset.root=PATH model=resnet20 trainer.max_epochs=3",
            "leyden -m model=lenet5,mlp optimizer.lr=0.1,0.01",
            "leyden --cfg job --package optimizer",
        )),
    "eval": Verb("RUN", "test a finished run, or one checkpoint of it", starts_workers=True, examples=(
        "leyden eval outputs/DAY/TIME", "leyden eval outputs/DAY/TIME/checkpoints/last.ckpt")),
    "resume": Verb(
        "RUN|SWEEP [KEY=VALUE ...]", "go on with a run in its own folder, or with a sweep's unfinished trials",
        (CONFIG_DIR,), starts_workers=True, examples=(
            "leyden resume outputs/DAY/TIME trainer.max_epochs=30",
            "leyden resume outputs/DAY/TIME strategy=ddp topology.devices_per_node=2",
        )),
    "view": Verb("[DIR]", "TensorBoard on DIR (outputs/), on this machine only", (PORT,)),
    "schema": Verb("[GROUP]", "JSON Schema of a whole config, or of the files of one group, for editors",
                   examples=("leyden schema > leyden.schema.json", "leyden schema model > model.schema.json")),
    "status": Verb("[FOLDER ...]", "how the runs there (outputs/) stand: step, time left, what went wrong", (JSON,)),
    "stop": Verb("RUN|SWEEP", "ask it to save and end, and wait until it has"),
    # a launcher may well start it, once on each host
    "node": Verb("RUN", "this host's part of a run over several", (RENDEZVOUS, WAIT, EVAL),
                 ("leyden node --rendezvous HOST:29400 outputs/DAY/TIME",)),
    "topology": Verb("", "print this machine as a file for a folder topology/ of your own",
                     examples=("leyden topology > MYCONF/topology/mine.yaml",)),
    "doctor": Verb(
        "[topology=NAME ...]", "measure devices and links, name the slow ones", (CONFIG_DIR, WRITE),
        starts_workers=True, examples=(
            "leyden doctor topology=cpu topology.devices_per_node=2",
            "leyden --config-dir MYCONF doctor topology=mine --write MYCONF/topology/measured.yaml",
        )),
    "help": Verb(
        "[VERB|GROUP|KEY ...]", "explain a verb, a group, one of its choices, or a key", (CONFIG_DIR,), (
            "leyden help strategy", "leyden help model=resnet50", "leyden help trainer.precision optimizer.lr")),
}  # fmt: skip


def all_flags() -> dict[str, Flag]:
    """Every flag by its key."""
    flags = [*(flag for verb in VERBS.values() for flag in verb.flags), HELP, VERSION]
    return {flag.key: flag for flag in flags}


def verbs_with(key: str) -> list[str]:
    """The verbs that take a flag."""
    return [name for name, verb in VERBS.items() if any(flag.key == key for flag in verb.flags)]
