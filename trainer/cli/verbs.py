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
        """Attribute of the flag in the parsed arguments."""
        return self.names[0].removeprefix("--").replace("-", "_")

    @property
    def usage(self) -> str:
        """The flag as help pages show it."""
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
        keys: names of the YAML files with keys of its own.
    """

    words: str
    text: str
    flags: tuple[Flag, ...] = ()
    examples: Sequence[str] = ()
    starts_workers: bool = False
    keys: tuple[str, ...] = ()


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
JSON = Flag(("--json",), "", "for programs")
WRITE = Flag(("--write",), "FILE.yaml", "write the topology with the measured figures")
TRAIN = Flag(("--train",), "", "then train: each strategy against one device, a killed worker, images/s")
RENDEZVOUS = Flag(("--rendezvous",), "HOST:PORT", "address of one of the hosts, at which all rendezvous")
WAIT = Flag(("--wait",), "S", "seconds to wait for the other hosts (default 300)", {"type": float})
CROPS = Flag(("--crops",), "5|10", "average over the corners and the centre of each image; 10: and their mirror images",
             {"type": int, "choices": [5, 10]})  # fmt: skip
SCALES = Flag(("--scales",), "S,S,...", "average over several sizes: pixels of the shorter side before crops are cut")
OUT = Flag(
    ("--out",),
    "FILE",
    "the file to write; its suffix says what: .png, .csv, .json, .parquet, .html; of inspect RUN a folder",
)
FROM = Flag(("--from",), "RUN", "take the step's computation from a run that was measured")
BY = Flag(("--by",), "METRIC", "metric that ranks (default: callbacks.checkpoint.monitor)")
FORMAT = Flag(("--format",), "FORMAT", "safetensors, pt2, onnx or int8")
MODE = Flag(("--mode",), "max|min", "whether more or less of it is better", {"choices": ["max", "min"]})
BEST = Flag(("--best",), "", "the best checkpoint by callbacks.checkpoint.monitor, in place of the newest")
EVAL = Flag(("--eval",), "", "evaluate the run in place of training it")
TRUST = Flag(("--trust",), "", "run what the config of another user's run names: read it first (docs/security.md)")
HELP = Flag(("--help", "-h"), "", "of `leyden`, or of one verb")
VERSION = Flag(("--version",), "", "")

VERBS = {
    "train": Verb(
        "[KEY=VALUE ...]", "train with these overrides (the default verb, may be omitted)",
        (CFG, RESOLVE, PACKAGE, INFO, MULTIRUN, CONFIG_DIR, CONFIG_NAME), starts_workers=True, examples=(
            "leyden dataset=cifar10 dataset.root=PATH model=resnet20 trainer.max_epochs=3",
            "leyden -m model=lenet5,mlp optimizer.lr=0.05,0.02",
            "leyden --cfg job --package optimizer",
        )),
    "eval": Verb(
        "RUN [dataset=NAME ...]", "test a run, one checkpoint of it, or weights",
        (CROPS, SCALES, OUT, CONFIG_DIR, TRUST), starts_workers=True, examples=(
            "leyden eval outputs/DAY/TIME", "leyden eval outputs/DAY/TIME/checkpoints/last.ckpt",
            "leyden eval outputs/DAY/TIME dataset=image_folder dataset.root=OTHER --out metrics.json",
            "leyden eval --crops 10 --scales 224,256,288 outputs/DAY/TIME",
            "leyden eval model=efficientnet_lite0 model.pretrained=true dataset=image_folder dataset.root=PHOTOS",
        )),
    "predict": Verb(
        "RUN PHOTOS [KEY=VALUE ...]", "classes of photographs: a table, and a contact sheet beside it",
        (OUT, BEST, TRUST), keys=("predict",), examples=(
            "leyden predict outputs/DAY/TIME PHOTOS --out predictions.json",
            "leyden predict --best outputs/DAY/TIME photograph.jpg top=3",
        )),
    "export": Verb(
        "RUN [KEY=VALUE ...]", "the network for other programs, its outputs checked",
        (FORMAT, OUT, BEST, TRUST), (
            "leyden export outputs/DAY/TIME --format onnx", "leyden export RUN --format pt2 --out network.pt2")),
    "compare": Verb(
        "[RUN|SWEEP|FOLDER ...]", "runs ranked by a metric, and what differs in their configs",
        (BY, MODE, OUT), (
            "leyden compare outputs/DAY/TIME outputs/DAY/TIME", "leyden compare SWEEP --out compare.html",
            "leyden compare outputs --by val/loss --out compare",
        )),
    "resume": Verb(
        "RUN|SWEEP [KEY=VALUE ...]", "continue a run in its own folder, or a sweep's unfinished trials",
        (CONFIG_DIR, TRUST), starts_workers=True, examples=(
            "leyden resume outputs/DAY/TIME trainer.max_epochs=30",
            "leyden resume outputs/DAY/TIME strategy=ddp topology.devices_per_node=2",
        )),
    "view": Verb("[DIR ...]", "TensorBoard on DIR (outputs/), on this machine only", (PORT,)),
    "schema": Verb("[GROUP]", "JSON Schema of a whole config, or of the files of one group, for editors",
                   examples=("leyden schema > leyden.schema.json", "leyden schema model > model.schema.json")),
    "status": Verb("[FOLDER ...]", "states of the runs there (outputs/): step, time left, errors", (JSON,)),
    "stop": Verb("RUN|SWEEP", "request it to save and end, and wait for the end", (TRUST,)),
    # not starts_workers: a launcher may start it once on each host
    "node": Verb("RUN", "this host's part of a run over several", (RENDEZVOUS, WAIT, EVAL, TRUST),
                 ("leyden node --rendezvous HOST:29400 outputs/DAY/TIME",)),
    "topology": Verb("", "print this machine as a file for a folder topology/ of your own",
                     examples=("leyden topology > MYCONF/topology/mine.yaml",)),
    "doctor": Verb(
        "[topology=NAME ...]", "measure devices and links, name the slow ones", (CONFIG_DIR, WRITE, TRAIN),
        starts_workers=True, examples=(
            "leyden doctor topology=cpu topology.devices_per_node=2",
            "leyden doctor --train topology=cpu topology.devices_per_node=2 strategy=ddp,butterfly",
            "leyden --config-dir MYCONF doctor topology=mine --write MYCONF/topology/measured.yaml",
        )),
    "plan": Verb(
        "[KEY=VALUE ...]", "a training's time, memory, traffic and cost before it starts",
        (MULTIRUN, FROM, CONFIG_DIR, JSON, OUT), keys=("plan",), examples=(
            "leyden plan experiment=deep_image_hybrid16",
            "leyden plan -m experiment=deep_image_hybrid16 strategy=ddp,butterfly topology.nodes=1,2,4 --out plan.png",
            "leyden plan --from outputs/DAY/TIME strategy=ddp topology.devices_per_node=2 budget.hours=2",
        )),
    "bench": Verb(
        "data [KEY=VALUE ...]", "images/s of this data here, by number of threads; CPU time by stage",
        (CONFIG_DIR, JSON), ("leyden bench data dataset=image_folder dataset.root=PATH augment=imagenet",)),
    "inspect": Verb(
        "RUN|augment|data [KEY=VALUE ...]",
        "what a network has learned; training images; what data holds",
        (CONFIG_DIR, OUT, BEST, TRUST), keys=("inspect",), examples=(
            "leyden inspect outputs/DAY/TIME", "leyden inspect outputs/DAY/TIME layers=2 maps=12 --out pictures",
            "leyden inspect augment augment=crop_flip", "leyden inspect data dataset=image_folder dataset.root=PATH",
            "leyden inspect augment dataset=image_folder dataset.root=PATH augment=[imagenet,mixup] --out sheet.png",
        )),
    "prepare": Verb(
        "[KEY=VALUE ...] out=SHARDS", "write a dataset as shards: smaller, one read away; continues if repeated",
        (CONFIG_DIR,), keys=("prepare",), examples=(
            "leyden prepare dataset=image_folder dataset.root=PHOTOS out=SHARDS size=256",
            "leyden dataset=shards dataset.root=SHARDS augment=imagenet model=resnet50",
        )),
    "manifest": Verb(
        "kubernetes|kubeflow [KEY=VALUE ...]", "print the run as a job of Kubernetes, or of Kubeflow Trainer",
        (CONFIG_DIR,), (
            "leyden manifest kubernetes topology=kubernetes topology.kubernetes.image=IMAGE hydra.run.dir=/shared/run",
            "leyden --config-dir MYCONF manifest kubeflow topology=mine strategy=ddp hydra.run.dir=/shared/run",
        )),
    "find": Verb(
        "lr|batch_size [KEY=VALUE ...]", "a learning rate by the range test, or the largest batch size that fits",
        (CONFIG_DIR,), starts_workers=True, keys=("find_lr", "find_batch_size"), examples=(
            "leyden find lr dataset=cifar10 dataset.root=PATH model=resnet20",
            "leyden find batch_size model=resnet50 dataset=imagenet dataset.root=PATH trainer.precision=bf16-mixed",
        )),
    "completion": Verb(
        "bash|zsh|fish", "print a shell's function that completes verbs, groups, keys",
        examples=(
            "leyden completion bash > ~/.local/share/bash-completion/completions/leyden",
            "leyden completion zsh > ~/.zfunc/_leyden",
            "leyden completion fish > ~/.config/fish/completions/leyden.fish",
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
