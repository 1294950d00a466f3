"""Mistakes that real users make, and what each must be told: key, value, what is allowed, where it was set, remedy."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from folders import CONF
from hydra._internal.config_repository import ConfigRepository
from remedied import shown, works
from runs import TINY

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.cli.main import main
from leyden.trainer.compose import hydra_compat
from leyden.trainer.compose.composer import Composer
from leyden.trainer.compose.composition.loader import Loader
from leyden.trainer.compose.signatures import node_problems
from leyden.trainer.config.schema import Target
from leyden.trainer.hardware.topology import CPU_WORKERS_PER_CORE, cores, gpu_count

pytestmark = pytest.mark.thinned(4)


@dataclass(frozen=True)
class Mistake:
    name: str
    command: str
    told: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)


def mistake(name: str, command: str, *told: str, **files: str) -> Mistake:
    """`files`: paths with `__` for `/` and no suffix are YAML files of the folder `mine`."""
    return Mistake(name, command, told, {f"mine/{n.replace('__', '/')}.yaml": text for n, text in files.items()})


MODEL = "_target_: leyden.models.lenet5.LeNet5\n"
MOST_WORKERS = CPU_WORKERS_PER_CORE * cores()

MISTAKES = [
    # keys and values where one value belongs
    mistake("a mapping in place of a number", "strategy=asgd topology.devices_per_node=2 strategy.max_staleness={a:1}",
            "strategy.max_staleness", "must be a whole number or null"),
    mistake("a mapping in place of a choice", "strategy=hybrid topology.devices_per_node=2 strategy.scheme={a:1}",
            "strategy.scheme", "must be one of a, b, c"),
    mistake("a mapping for torch's optimizer", "optimizer.weight_decay={a:1}", "optimizer.weight_decay",
            "must be a number"),
    mistake("one value in place of a list", "model=mlp model.hidden=7", "model.hidden = 7", "must be a list, each"),
    mistake("data that are not named hide nothing", "dataset=image_folder optimizer.lr=1e-3x batch_size=-1",
            "there are 3 mistakes", "dataset.root\n", "must be given", "batch_size = -1", "optimizer.lr = 1e-3x"),
    mistake("data that are not named, beside a number from the environment",
            "dataset=image_folder optimizer.lr=${oc.env:NOT_SET,0.1} optimizer.foo=1",
            "there are 2 mistakes", "dataset.root\n", "optimizer.foo"),
    # groups and choices
    mistake("typo in a group", "modle=mlp", "modle = mlp", "did you mean model?", "override 'modle=mlp'", "model=mlp"),
    mistake("typo in a choice", "model=lenet6", "model = lenet6", "model can be airbench, ", "did you mean lenet5?",
            "override 'model=lenet6'", "try: model=lenet5"),
    mistake("choice that is a number", "model=5", "model = 5", "model can be airbench, ", "override 'model=5'"),
    mistake("data as another spelling of dataset", "data=cifar", "dataset = cifar", "did you mean cifar10?",
            "override 'data=cifar'"),
    mistake("typo in a list of choices", "callbacks=[default,emma]", "callbacks = emma", "did you mean ema?",
            "callbacks=[default,ema]"),
    mistake("choice in an experiment", "-cd mine experiment=fast", "model = lenet6", "mine/experiment/fast.yaml:3",
            "did you mean lenet5?",
            experiment__fast="# @package _global_\ndefaults:\n  - override /model: lenet6\n"),
    mistake("group that is no part of the config", "models/x=1", "models/x", "no such config group", "model"),
    mistake("missing launcher plugin", "hydra/launcher=slurm", "hydra/launcher = slurm", "basic"),
    mistake("group given a package", "model@net=mlp", "model@net", "not part of the config", "did you mean model?"),
    mistake("override of a group in a place that has none", "-cd mine model=mine", "model/augment",
            "did you mean augment?", "the defaults list of model/mine.yaml",
            model__mine="defaults:\n  - override augment: none\n" + MODEL),
    mistake("start file that is not there", "-cn trane", "--config-name = trane", "--config-name train"),
    mistake("folder that is not there", "--config-dir nowhere", "--config-dir = nowhere", "no such folder"),
    # keys
    mistake("typo in a key", "trainer.max_epoch=3", "trainer.max_epoch = 3", "did you mean trainer.max_epochs?",
            "override 'trainer.max_epoch=3'", "try: trainer.max_epochs=3", "+key=value adds an argument"),
    mistake("key of another group", "lr=0.1", "lr = 0.1", "did you mean optimizer.lr?", "try: optimizer.lr=0.1"),
    mistake("key without its group", "max_epochs=3", "try: trainer.max_epochs=3"),
    mistake("key added with +", "+trainer.max_epoch=3", "trainer.max_epoch = 3", "did you mean trainer.max_epochs?",
            "override '+trainer.max_epoch=3'"),
    mistake("key of Lightning: devices", "trainer.devices=2", "trainer.devices = 2",
            "is called topology.devices_per_node here", "try: topology.devices_per_node=2"),
    mistake("key of Lightning: num_nodes", "trainer.num_nodes=2", "is called topology.nodes here"),
    mistake("key of Lightning: accelerator", "trainer.accelerator=gpu", "is called topology.device.kind here"),
    mistake("key of Lightning: strategy", "trainer.strategy=ddp", "is called strategy here", "try: strategy=ddp"),
    mistake("typo in a key of Hydra's", "hydra.run.dirr=x", "hydra.run.dirr = x", "did you mean hydra.run.dir?"),
    mistake("typo in the user's YAML", "-cd mine experiment=fast", "trainer.max_epoch = 3",
            "mine/experiment/fast.yaml:3", "did you mean trainer.max_epochs?",
            experiment__fast="# @package _global_\ntrainer:\n  max_epoch: 3\n"),
    mistake("a key that is there given with +", "+optimizer.lr=1", "is there already", "try: optimizer.lr=1"),
    mistake("a key taken away that is not there", "~trainer.foo", "trainer.foo", "cannot be taken away with ~"),
    mistake("a key that the schema needs taken away", "~trainer.max_epochs", "trainer.max_epochs", "is missing"),
    mistake("a key below a value", "trainer.max_epochs.x=3", "trainer.max_epochs.x = 3", "no such key"),
    # types and ranges
    mistake("text for a number", "trainer.max_epochs=three", "trainer.max_epochs = three", "must be a whole number",
            "override 'trainer.max_epochs=three'"),
    mistake("fraction for a whole number", "seed=1.5", "seed = 1.5", "must be a whole number"),
    mistake("number for a switch", "trainer.compile=1", "trainer.compile = 1", "must be true or false",
            "try: trainer.compile=true"),
    mistake("word for a switch", "trainer.channels_last=off", "must be true or false",
            "try: trainer.channels_last=false"),
    mistake("whole number as a fraction", "batch_size=1e3", "must be a whole number", "try: batch_size=1000"),
    mistake("null as in Python", "optimizer.layer_decay=None", "must be a number", "try: optimizer.layer_decay=null"),
    mistake("null where there is a value", "batch_size=None", "must be a whole number"),
    mistake("shape as in a paper", "dataset=synthetic dataset.image_shape=1x28x28", "must be a list",
            "try: dataset.image_shape=[1,28,28]"),
    mistake("mode of compilation", "trainer.compile={mode:fast}", "trainer.compile.mode = fast", "reduce-overhead"),
    mistake("key of compilation", "trainer.compile={modes:default}", "trainer.compile.modes", "mode"),
    mistake("keys for plain values", "seed={a:1} trainer.max_epochs={b:2} trainer.compile={mode:fast}",
            "there are 3 mistakes", "seed = ", "trainer.max_epochs = ", "trainer.compile.mode = fast"),
    mistake("number for modules", "trainer.activation_checkpointing=3", "must be true or false, or a list"),
    mistake("value for a group of keys", "trainer=5", "trainer = 5", "must hold keys and values"),
    mistake("out of range", "batch_size=0", "batch_size = 0", "must be at least 1", "override 'batch_size=0'"),
    mistake("fraction over one", "trainer.limit_val_batches=1.5", "must be a whole number, or at most 1"),
    mistake("choice of a key", "trainer.precision=bf16", "trainer.precision = bf16", "32-true, 64-true, bf16-mixed",
            "did you mean bf16-mixed?", "try: trainer.precision=bf16-mixed"),
    mistake("device that is none", "topology.device.kind=gpu", "topology.device.kind = gpu", "auto, cpu, cuda"),
    mistake("text for a list", "tags=fast", "tags = fast", "must be a list"),
    mistake("several at once", "seed=-1 batch_size=x trainer.max_steps=-2", "there are 3 mistakes", "seed = -1",
            "batch_size = x", "trainer.max_steps = -2"),
    mistake("wrong type in the user's YAML", "-cd mine experiment=fast", "batch_size = 64k", "must be a whole number",
            "mine/experiment/fast.yaml:2", experiment__fast="# @package _global_\nbatch_size: 64k\n"),
    # the text of overrides
    mistake("neither verb nor override", "trian", "trian", "did you mean train?", "train, eval, predict, export"),
    mistake("override without a value", "seed=1 trainer.max_epochs", "trainer.max_epochs", "key=value"),
    mistake("brackets that do not match", "tags=[a,b", "tags = [a,b", "brackets must match", "override 'tags=[a,b'"),
    mistake("bracket that closes nothing", "tags=[a,b]]", "tags = [a,b]]", "try: tags=[a,b]"),
    mistake("comma too many in a list", "tags=[a,,b]", "tags = [a,,b]", "try: tags=[a,b]"),
    mistake("list in round brackets", "tags=(a,b)", "tags = (a,b)", "try: tags=[a,b]"),
    mistake("number in round brackets", "batch_size=(64)", "batch_size = (64)", "try: batch_size=64"),
    mistake("number with a bracket", "batch_size={64", "batch_size = {64", "brackets must match"),
    mistake("comma after a number", "optimizer.lr=0.1,", "optimizer.lr = 0.1,", "try: optimizer.lr=0.1"),
    mistake("comma after a sweep", "-m model=lenet5,mlp, seed=1", "model = lenet5,mlp,", "-m model=lenet5,mlp seed=1"),
    mistake("comma after a choice of a sweep", "-m model=lenet5, seed=1,2", "model = lenet5,", "try: model=lenet5"),
    mistake("= twice", "batch_size==64", "batch_size = =64", "try: batch_size=64"),
    mistake("text with a bracket", "dataset=image_folder dataset.root=photos(1", "must be quoted",
            """try: "dataset.root='photos(1'\""""),
    mistake("home folder as ~", "dataset=image_folder dataset.root=~/x", "dataset.root = ~/x", "must be quoted"),
    mistake("several values without -m", "optimizer.lr=0.1,0.01", "several values are a sweep", "-m",
            "leyden -m optimizer.lr=0.1,0.01"),
    mistake("range without -m", "seed=range(3)", "several values are a sweep", "leyden -m 'seed=range(3)'"),
    mistake("flag that is none", "--cfg job --multi-run", "--multi-run", "--multirun"),
    mistake("flag that goes with another", "--resolve", "--resolve", "--cfg"),
    # YAML and interpolations
    mistake("YAML syntax", "-cd mine model=mine", "is not valid YAML", "mine/model/mine.yaml:2",
            model__mine="_target_: a.B\n  hidden: [1\n"),
    mistake("key twice", "-cd mine model=mine", "duplicate key", "mine/model/mine.yaml:2",
            model__mine="hidden: 1\nhidden: 2\n"),
    mistake("interpolation that leads nowhere", "-cd mine model=mine", "model.hidden = ${no.such}",
            "no key 'no.such'", "mine/model/mine.yaml:2", model__mine=f"{MODEL}hidden: ${{no.such}}\n"),
    mistake("interpolation that loops", "seed=${batch_size} batch_size=${seed}", "seed = ${batch_size}",
            "leads back to itself", "override 'seed=${batch_size}'"),
    mistake("environment variable that is not set", "seed=${oc.env:LEYDEN_NO_SUCH}", "LEYDEN_NO_SUCH", "seed"),
    mistake("resolver that is none", "seed=${nosuch:1}", "seed = ${nosuch:1}", "nosuch"),
    mistake("interpolation cut off", "seed='${'", "seed", "override 'seed='${''"),
    mistake("mandatory value", "dataset=cifar10 schedule=multistep", "dataset.root", "schedule.milestones", "???",
            "conf/dataset/cifar10.yaml:", "needs: dataset.root=VALUE"),
    mistake("mandatory value in the user's YAML", "-cd mine model=mine", "model.width", "mine/model/mine.yaml:2",
            model__mine=f"{MODEL}width: ???\n"),
    # classes and their arguments
    mistake("class without a path", "model._target_=LeNet5", "model._target_ = LeNet5", "package.module.Class"),
    mistake("typo in a module", "model._target_=leyden.models.lenet.LeNet5", "model._target_",
            "did you mean leyden.models.lenet5.LeNet5?"),
    mistake("typo in a class", "model._target_=leyden.models.lenet5.LeNet", "no 'LeNet'",
            "did you mean leyden.models.lenet5.LeNet5?"),
    mistake("package that is not installed", "-cd mine model=mine", "model._target_ = no_such_package.Net",
            "no module 'no_such_package'", "mine/model/mine.yaml:1", model__mine="_target_: no_such_package.Net\n"),
    mistake("target that is no class", "model._target_=math.pi", "model._target_ = math.pi", "neither a class nor"),
    mistake("YAML without a target", "-cd mine model=mine", "model", "has no _target_", "model=NAME",
            model__mine="hidden: 3\n"),
    mistake("typo in an argument", "dataset.image_sise=8", "dataset.image_sise = 8", "Digits takes no argument",
            "did you mean image_size?", "try: dataset.image_size=8"),
    mistake("argument that the class does not take", "model.dropout=0.5", "model.dropout = 0.5",
            "LeNet5 takes no argument 'dropout'", "override 'model.dropout=0.5'"),
    mistake("typo in an argument in the user's YAML", "-cd mine model=mine", "model.hiden = [3]",
            "mine/model/mine.yaml:2", "did you mean hidden?",
            model__mine="_target_: leyden.models.mlp.MLP\nhiden: [3]\n"),
    mistake("argument of the wrong type", "model=mlp model.dropout=half", "model.dropout = half", "must be a number"),
    mistake("list for an argument", "model=mlp model.hidden=[a]", "model.hidden = ['a']", "whole number"),
    mistake("argument that is needed", "-cd mine optimizer=mine", "schedule.milestones", "cannot be built without it",
            "+schedule.milestones", optimizer__mine="_target_: torch.optim.SGD\nlr: 0.1\n",
            schedule__cosine="_target_: torch.optim.lr_scheduler.MultiStepLR\n"),
    mistake("argument of a callback", "+callbacks.checkpoint.keep=3", "callbacks.checkpoint.keep = 3",
            "did you mean keep_last?"),
    mistake("learning rate that is no number", "optimizer.lr=fast", "optimizer.lr = fast", "greater than 0"),
    mistake("learning rate below zero", "optimizer.lr=-0.1", "optimizer.lr = -0.1", "greater than 0"),
    mistake("a group without its list", "optimizer.groups={match:features.0}", "the value cannot be put there",
            "optimizer.groups=[{match:features.0}]"),
    # keys that do not go together
    mistake("batch not divisible", "batch_size=63 topology.devices_per_node=2 strategy=ddp", "batch_size = 63",
            "divisible by 2 workers", "try: batch_size=62", "try: batch_size=64"),
    mistake("batch not divisible by its parts", "trainer.accumulate_grad_batches=3", "batch_size = 64",
            "1 workers x 3 accumulate_grad_batches", "conf/train.yaml:"),
    mistake("single with two workers", "topology.devices_per_node=2", "trains on one worker", "try: strategy=ddp"),
    mistake("too many workers", f"topology.device.kind=cpu topology.devices_per_node={MOST_WORKERS + 1} strategy=ddp",
            "topology.devices_per_node", f"at most {MOST_WORKERS} on this CPU", f"{cores()} cores"),
    mistake("nodes with the local launcher", "topology.nodes=2 strategy=ddp", "topology.nodes = 2", "launcher=local"),
    mistake("float16 on a CPU", "topology.device.kind=cpu trainer.precision=16-mixed", "trainer.precision = 16-mixed",
            "float16 needs a GPU", "try: trainer.precision=bf16-mixed"),
    mistake("partitions", "dataset.partitions=3 dataset.partition_order=[0,1,1]", "dataset.partition_order = [0, 1, 1]",
            "each of the 3 partitions", "[2,1,0]"),
    mistake("no model", "model=null", "model = null", "the task Classification needs a model", "model=lenet5"),
    mistake("metric to watch without a need", "schedule.monitor=val/loss", "schedule.monitor = val/loss",
            "only ReduceLROnPlateau", "schedule.monitor=null"),
    mistake("no metric to watch", "-cd mine schedule=plateau", "schedule.monitor", "needs a metric to monitor",
            schedule__plateau="_target_: torch.optim.lr_scheduler.ReduceLROnPlateau\n_partial_: true\n"),
    mistake("dataset that is a network", "dataset._target_=leyden.models.mlp.MLP ~dataset.image_size",
            "dataset._target_ = leyden.models.mlp.MLP", "a dataset has __len__, __getitem__, classes, image_shape"),
    # files and folders
    mistake("data folder that is not there", "dataset=cifar10 dataset.root=/no/such/folder",
            "dataset.root = /no/such/folder", "no such file or folder", "'no' in it does not",
            "override 'dataset.root=/no/such/folder'"),
    mistake("weights that are not there", "init_from=weights.safetensors", "init_from = weights.safetensors",
            "no such run folder or file"),
    mistake("output place that is a file", "hydra.run.dir=mine/model/mine.yaml/run", "hydra.run.dir",
            "cannot be written", "hydra.run.dir=FOLDER", model__mine=MODEL),
    # verbs
    mistake("eval without a run", "eval", "needs the folder of a run"),
    mistake("eval of no folder", "eval outputs/nowhere", "RUN = outputs/nowhere", "no such run folder or checkpoint"),
    mistake("eval of a folder without a run", "eval mine", "RUN = mine", "holds no run (no config.yaml)",
            "try: outputs/kept", model__mine=MODEL, **{"../outputs/kept/config": "seed: 1\n"}),
    mistake("eval with a typo in the run", "eval outputs/keppt", "try: outputs/kept",
            **{"../outputs/kept/config": "seed: 1\n", "../outputs/other/config": "seed: 1\n"}),
    mistake("eval of a sweep", "eval mine", "this is a sweep; its trials are 0", "try: mine/0",
            multirun="hydra: {}\n", **{"0__config": "seed: 1\n"}),
    mistake("resume of a config that is damaged", "resume mine", "RUN = mine", "cannot be read",
            config="seed: [1\n"),
    mistake("resume of a config with a key missing", "resume mine", "batch_size", "is missing", config="seed: 1\n"),
    mistake("resume with another batch", "resume mine batch_size=3", "batch_size = 3", "stays frozen",
            "override 'batch_size=3'", config="seed: 1\n"),
    mistake("resume with a strategy's key", "resume mine strategy.tau=3", "changes only if it is named",
            "strategy=NAME strategy.tau=3", config="seed: 1\n"),
    mistake("resume of a file that is no checkpoint", "resume mine/model/mine.yaml", "is not in a run folder",
            model__mine=MODEL),
    mistake("view of no folder", "view nowhere", "view = nowhere", "no such folder"),
    mistake("schema of no group", "schema modle", "schema = modle", "leyden schema model"),
    # sweeps
    mistake("sweep with a wrong choice", "-m model=lenet5,lenet6", "trial 1 (model=lenet6)", "did you mean lenet5?"),
    mistake("sweep with a wrong value", "-m optimizer.lr=0.1,-1", "trial 1 (optimizer.lr=-1)", "greater than 0"),
    mistake("sweep over an interval", "-m optimizer.lr=interval(0,1)", "INTERVAL_SWEEP"),
    mistake("sweep whose trials share a folder", "-m seed=1,2 hydra.sweep.subdir=x", "share a folder", "= x"),
]  # fmt: skip


def below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case.name)
def test_mistake_is_told_and_leaves_nothing(case: Mistake, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine").mkdir()
    write(here, case.files)
    before = below(here)

    code = main(case.command.split())

    printed = capsys.readouterr()
    assert code == 2, printed.out
    for part in case.told:
        assert part in printed.err.replace("\n      ", " "), f"{part!r} is not in:\n{printed.err}"
    assert "Traceback" not in printed.err
    assert len(printed.err.splitlines()) <= 24
    assert printed.out == ""
    assert below(here) == before
    for remedy in shown(printed.err):
        assert works(remedy, case.command.split()), remedy


def test_table_is_long_enough() -> None:
    assert len(MISTAKES) >= 40
    assert len({case.name for case in MISTAKES}) == len(MISTAKES)


def test_task_with_its_own_network_wants_no_model(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = "from lightning.pytorch import LightningModule\n\n\nclass Whole(LightningModule):\n"
    write(here, {"mytask.py": source + "    def __init__(self, classes):\n        pass\n"})
    assert main(["task._target_=mytask.Whole"]) == 2
    assert "try: model=null" in capsys.readouterr().err


def test_strategy_says_what_it_refuses(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = "from lightning.fabric.strategies import DDPStrategy\n"
    source += "from leyden.trainer.core.strategy_contract import StrategyContract\n\n\n"
    source += "class Picky(StrategyContract, DDPStrategy):\n"
    source += "    @staticmethod\n    def validate_config(config):\n        return [f'not seed {config.seed}']\n"
    write(here, {"picky.py": source})
    assert main(["strategy._target_=picky.Picky", "seed=7"]) == 2
    assert "not seed 7" in capsys.readouterr().err


def test_module_that_cannot_be_imported_names_its_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, {"broken_net.py": "import math\n\nraise RuntimeError('half written')\n"})
    assert main(["model._target_=broken_net.Net"]) == 2
    told = capsys.readouterr().err
    assert "RuntimeError: half written" in told
    assert "broken_net.py:3" in told


def test_more_gpus_than_there_are(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology.device.kind=cuda", f"topology.devices_per_node={gpu_count() + 1}", "strategy=ddp"]) == 2
    told = capsys.readouterr().err
    assert ("topology.devices_per_node" if gpu_count() else "no GPU that torch can use") in told


def test_damaged_checkpoint_is_refused_before_anything_changes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hydra.run.dir=run", "trainer.enable_progress_bar=false", *TINY]) == 0
    damaged = here / "run/checkpoints/damaged.ckpt"
    damaged.write_bytes(b"no checkpoint")
    capsys.readouterr()
    for verb in ("eval", "resume"):
        assert main([verb, "run/checkpoints/damaged.ckpt"]) == 2
        told = capsys.readouterr().err
        assert "damaged.ckpt" in told
        assert "Traceback" not in told


WITHOUT_TORCH = [
    "--help", "trainer.max_epoch=3", "model=lenet6", "seed=x", "batch_size=0", "-m seed=1,x",
    "dataset=image_folder model=mlp", "model._target_=os.system", "model._target_=torch.hub.load",
    "task._target_=lightning.pytorch.LightningModule +callbacks.a._target_=pickle.loads",
]  # fmt: skip
IMPORTED = """
import json, sys
from leyden.trainer.cli.main import main
for words in sys.argv[1:]:
    code = main(words.split())
    print()
    print(json.dumps([code, [name for name in ("torch", "lightning", "pytorch_lightning") if name in sys.modules]]))
"""


def test_what_the_schema_shows_needs_neither_torch_nor_lightning(here: Path) -> None:
    command = [sys.executable, "-c", IMPORTED, *WITHOUT_TORCH]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    for words, each in zip(WITHOUT_TORCH, found, strict=True):
        assert each == [0 if words == "--help" else 2, []], words


def test_a_mistake_waits_for_nothing_that_starts_runs(here: Path) -> None:
    code = "import sys; from leyden.trainer.cli.main import main; assert main(['trainer.max_epochs=three']) == 2\n"
    code += "print([name for name in sys.modules if name.startswith(('leyden.trainer.sweep', 'psutil', 'PIL'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _read_files(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The YAML files that Hydra reads from now on, with the number of times, as in a process that has read none."""
    monkeypatch.setattr(hydra_compat, "_read", {})
    read: Counter[str] = Counter()
    load = ConfigRepository.load_config

    def noted(self: ConfigRepository, config_path: str) -> Any:
        found = load(self, config_path)
        read[config_path] += found is not None and found.path.startswith(("pkg://leyden", "file:"))
        return found

    monkeypatch.setattr(ConfigRepository, "load_config", noted)
    return read


def test_a_valid_config_is_composed_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    composed: list[Sequence[str]] = []
    compose = Loader.load_configuration

    def noted(self: Loader, config_name: str | None, overrides: list[str], *rest: Any) -> Any:
        composed.append(overrides)
        return compose(self, config_name, overrides, *rest)

    monkeypatch.setattr(Loader, "load_configuration", noted)
    read = _read_files(monkeypatch)
    Composer().run(["model=mlp", "trainer.max_steps=1"])
    assert composed == [["model=mlp", "trainer.max_steps=1"]]
    assert max(read.values()) == 1


def test_an_error_and_its_remedies_read_each_file_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place of the mistake and every remedy that is tried need a composition of their own."""
    read = _read_files(monkeypatch)
    with pytest.raises(ConfigError, match="max_epochs=3"):
        Composer().run(["trainer.max_epoch=3"])
    assert read["train"] == read["model/lenet5"] == 1, read
    assert max(read.values()) == 1, read


def test_a_file_that_was_changed_is_read_again(here: Path) -> None:
    """Even to one of the same size; what a composition does to its values is not in the next one."""
    file = here / "conf" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("defaults: [train, _self_]\nseed: 1\n")
    composer = Composer(str(file.parent), "mine")
    seeds = [composer.run([f"batch_size={size}"]).config.seed for size in (2, 3)]
    file.write_text("defaults: [train, _self_]\nseed: 2\n")
    assert [*seeds, composer.run([]).config.seed, composer.run(["seed=7"]).config.seed] == [1, 1, 2, 7]
    assert composer.run([]).config.batch_size == Composer().run([]).config.batch_size
    (file.parent / "model").mkdir()
    (file.parent / "model" / "lenet5.yaml").write_text("_target_: leyden.models.mlp.MLP\nhidden: [3]\n")
    assert composer.run([]).values["model"]["hidden"] == [3], "a new file before one that was read"


# test_topologies.py has those of topology/: few of them are this machine; test_sweep_optuna.py those of a
# study; test_distillation.py the task that needs a run; planner/ has no config
SHIPPED = sorted(
    path.relative_to(CONF)
    for path in CONF.rglob("*.yaml")
    if not {"topology", "sweeper", "planner"} & set(path.parts) and path.name != "distillation.yaml"
)
TWO = ["topology.devices_per_node=2"]
PHOTOS = ["dataset=synthetic", "dataset.image_shape=[3,224,224]"]
NEEDS = {
    "model/alexnet.yaml": PHOTOS,
    "model/alexnet_owt.yaml": PHOTOS,
    "model/cots_autoencoder.yaml": ["dataset=synthetic", "dataset.image_shape=[3,200,200]", "task=reconstruction"],
    "model/easgd_imagenet11.yaml": PHOTOS,
    "model/reconstruction_ica.yaml": ["task=reconstruction"],
    "model/zfnet.yaml": PHOTOS,
    "dataset/image_patches.yaml": ["model=mlp"],
    "task/reconstruction.yaml": ["experiment=cots_digits"],
    "strategy/ddp.yaml": TWO,
    "strategy/butterfly.yaml": TWO,
    "strategy/fsdp.yaml": TWO,
    "strategy/hybrid.yaml": TWO,
    "strategy/spatial.yaml": [*TWO, "model=local_net"],
    "strategy/hsdp.yaml": [*TWO, "topology.nodes=2", "topology.launcher=node"],
    "experiment/cots_1b.yaml": ["topology.device.kind=cpu"],
    "experiment/cots_11b.yaml": ["topology.device.kind=cpu"],
    "experiment/nyu_easgd.yaml": ["topology.device.kind=cpu"],
    "experiment/owt_alexnet8.yaml": ["topology.device.kind=cpu"],
    "experiment/multi_training_8x8.yaml": ["strategy=ddp"],  # a sweep, whose trials have a worker each
    "experiment/multi_training_8x8_small.yaml": ["strategy=ddp"],
}


@pytest.mark.thinned(4, 1)
@pytest.mark.parametrize("shipped", [path for path in SHIPPED if path.parent != Path()], ids=str)
def test_every_shipped_yaml_composes_and_names_a_class_that_takes_it(
    shipped: Path, here: Path, composer: Composer
) -> None:
    group, name = str(shipped.parent), shipped.stem
    text = (CONF / shipped).read_text()
    overrides = [f"{group}={name}"]
    if group != "experiment":
        for key, value in (yaml.safe_load(text) or {}).items():
            if value == "???":
                overrides.append(f"{group}.{key}={'[1]' if key == 'milestones' else here}")
    if group == "experiment" and "dataset.root=" in text:  # its header says so
        overrides.append(f"dataset.root={here}")
    if name in ("timm", "trackio") and find_spec(name) is None:
        with pytest.raises(ConfigError, match="pip install"):
            composer.run(overrides)
        return
    run = composer.run([*overrides, *NEEDS.get(str(shipped), [])])

    node = getattr(run.config, group, None)
    nodes = node.values() if isinstance(node, dict) else [node]
    assert all(not list(node_problems(group, each)) for each in nodes if type(each) is Target)


LONG = "x" * 5000


@pytest.mark.parametrize(
    "words",
    [["eval", LONG], ["status", LONG], ["--config-dir", LONG], ["stop", LONG], ["view", LONG], [f"dataset={LONG}"],
     ["dataset=image_folder", f"dataset.root={LONG}"], [f"init_from={LONG}"]],
    ids=lambda words: words[0][:12],
)  # fmt: skip
def test_a_name_that_no_file_can_have(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "xxxxx" in capsys.readouterr().err


def test_the_nearest_run_is_none_of_hydras_folders(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("outputs/day/first", "outputs/day/first/.hydra"):
        (here / name).mkdir(parents=True)
        (here / name / "config.yaml").write_text("seed: 1\n")
    os.utime(here / "outputs/day/first/config.yaml", (0, 0))
    assert main(["eval", "x.hydra"]) == 2
    assert "try: outputs/day/first\n" in capsys.readouterr().err
