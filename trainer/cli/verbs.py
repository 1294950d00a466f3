"""The verbs of `leyden` and the flags of each, as data: the source of the parser and the help pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Flag:
    """An option of the command line.

    Args:
        names: as typed, the long one first.
        value: placeholder of its value in help; "" for a switch.
        text: one line of explanation.
        parsing: further keywords of argparse's `add_argument`.
    """

    names: tuple[str, ...]
    value: str
    text: str
    parsing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its attribute in the parsed arguments."""
        return self.names[0].removeprefix("--").replace("-", "_")

    @property
    def usage(self) -> str:
        """Its form in help pages."""
        return f"{', '.join(reversed(self.names))} {self.value}".rstrip()


@dataclass(frozen=True)
class Verb:
    """A verb of the command line.

    Args:
        words: its arguments without flags.
        text: one line of explanation.
        flags: its flags except --help and --version.
        examples: command lines.
        starts_workers: whether it starts or submits all processes of a run, and must run only once.
    """

    words: str
    text: str
    flags: tuple[Flag, ...] = ()
    examples: Sequence[str] = ()
    starts_workers: bool = False


_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
CFG = Flag(("--cfg", "-c"), "job|hydra|all", "print the composed config and exit", {"choices": ["job", "hydra", "all"]})
RESOLVE = Flag(("--resolve",), "", "with --cfg: interpolations replaced by their values")
PACKAGE = Flag(("--package", "-p"), "KEY", "with --cfg: only this part")
INFO = Flag(("--info", "-i"), "[WHAT]", f"print how the config is composed: {', '.join(_INFO)}",
            {"const": "all", "nargs": "?", "choices": _INFO})  # fmt: skip
MULTIRUN = Flag(("--multirun", "-m"), "", "a sweep: every combination of key=a,b,c")
CONFIG_DIR = Flag(("--config-dir", "-cd"), "DIR", "a folder of your own YAML files, laid out like the groups")
CONFIG_NAME = Flag(("--config-name", "-cn"), "NAME", "start from NAME.yaml instead of train.yaml")
PORT = Flag(("--port",), "N", "TensorBoard's port (default 6006)", {"type": int})
JSON = Flag(("--json",), "", "for programs: one list of objects")
WRITE = Flag(("--write",), "FILE.yaml", "write the topology with the measured figures")
RENDEZVOUS = Flag(("--rendezvous",), "HOST:PORT", "address of one of the hosts, at which all rendezvous")
WAIT = Flag(("--wait",), "S", "seconds to wait for the other hosts (default 300)", {"type": float})
EVAL = Flag(("--eval",), "", "evaluate the run in place of training it")
TRUST = Flag(("--trust",), "", "run what the config of another user's run names: read it first (docs/security.md)")
HELP = Flag(("--help", "-h"), "", "of `leyden`, or of one verb")
VERSION = Flag(("--version",), "", "")

VERBS = {
    "train": Verb(
        "[KEY=VALUE ...]", "train with these overrides (the default verb, may be omitted)",
        (CFG, RESOLVE, PACKAGE, INFO, MULTIRUN, CONFIG_DIR, CONFIG_NAME), starts_workers=True, examples=(
            "leyden dataset=cifar10 dataset.root=PATH model=resnet20 trainer.max_epochs=3",
            "leyden -m model=lenet5,mlp optimizer.lr=0.1,0.01",
            "leyden --cfg job --package optimizer",
        )),
    "eval": Verb("RUN", "test a finished run, or one checkpoint of it", (TRUST,), starts_workers=True, examples=(
        "leyden eval outputs/DAY/TIME", "leyden eval outputs/DAY/TIME/checkpoints/last.ckpt")),
    "resume": Verb(
        "RUN|SWEEP [KEY=VALUE ...]", "continue a run in its own folder, or a sweep's unfinished trials",
        (CONFIG_DIR, TRUST), starts_workers=True, examples=(
            "leyden resume outputs/DAY/TIME trainer.max_epochs=30",
            "leyden resume outputs/DAY/TIME strategy=ddp topology.devices_per_node=2",
        )),
    "view": Verb("[DIR]", "TensorBoard on DIR (outputs/), on this machine only", (PORT,)),
    "schema": Verb("[GROUP]", "JSON Schema of a whole config, or of the files of one group, for editors",
                   examples=("leyden schema > leyden.schema.json", "leyden schema model > model.schema.json")),
    "status": Verb("[FOLDER ...]", "states of the runs there (outputs/): step, time left, errors", (JSON,)),
    "stop": Verb("RUN|SWEEP", "request it to save and end, and wait for the end"),
    # not starts_workers: a launcher may start it once on each host
    "node": Verb("RUN", "this host's part of a run over several", (RENDEZVOUS, WAIT, EVAL, TRUST),
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
