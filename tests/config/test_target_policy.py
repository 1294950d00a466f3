"""What a config may execute: only what is allowed under any name, of another user's run only what is known."""

import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from folders import MODULES
from foreign_configs import FOREIGN, edited
from hostile_targets import COPIED, ELSEWHERE, MINE, MODELS, NODE, OWN, SWEPT
from omegaconf import OmegaConf
from runs import TINY

from leyden.trainer.base import versions
from leyden.trainer.base.errors import ConfigError
from leyden.trainer.cli.main import main
from leyden.trainer.compose.composer import Composer
from leyden.trainer.compose.hydra_node import hydra_problems
from leyden.trainer.config.allowed_targets import REMEDY
from leyden.trainer.config.locate import RefusedTarget, locate
from leyden.trainer.config.schema import load
from leyden.trainer.config.target_policy import untrusted_runs
from leyden.trainer.config.target_policy.untrusted_runs import restrict_values

pytestmark = pytest.mark.thinned(4)

QUIET = [*TINY, "trainer.max_steps=1", "trainer.enable_progress_bar=false", "logger=none"]
NOBODY = 54321


class Touch:
    """Creates the file when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch canary",)


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with what a hostile config may point at; each of it creates the file `canary`."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(MODULES)])
    code = "import os\nos.system('touch canary')\n"
    for name in ("evil.py", "hubconf.py"):
        (here / name).write_text(code)
    for name in ("evil.pkl", "evil.npy"):
        (here / name).write_bytes(pickle.dumps(Touch()))
    torch.save(Touch(), here / "evil.pt")
    return here


def untouched(folder: Path) -> None:
    made = {path.name for path in folder.iterdir()} - {"evil.py", "hubconf.py", "evil.pkl", "evil.npy", "evil.pt"}
    assert not made & {"canary", "outputs", "multirun"}, made


@pytest.mark.parametrize("target", MODELS)
def test_a_hostile_target_is_refused_and_never_called(
    target: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"model._target_={target}", "~model.parallel", *MODELS[target]]) == 2
    error = capsys.readouterr().err
    assert "leyden: nothing was started" in error
    assert f"model._target_ = {target}" in error
    untouched(here)


@pytest.mark.parametrize("case", ELSEWHERE)
def test_it_is_refused_wherever_a_config_names_it(case: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides, key = ELSEWHERE[case]
    assert main([*overrides, "~model.parallel"]) == 2
    error = capsys.readouterr().err
    assert "leyden: nothing was started" in error
    assert key in error
    untouched(here)


@pytest.mark.parametrize("case", SWEPT)
def test_hydras_own_node_gets_the_same_verdict(case: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides, key = SWEPT[case]
    assert main(["-m", "seed=1,2", *overrides]) == 2
    error = capsys.readouterr().err
    assert "leyden: nothing was started" in error
    assert key in error
    untouched(here)
    assert main(overrides) == 2
    untouched(here)


REFUSED = """
os.popen os.execv os.environ.update posix.system subprocess.getoutput runpy.run_module importlib.util.os.system
builtins.getattr builtins.eval builtins.setattr socket.create_server sqlite3.connect hydra.utils.call
hydra._internal.utils._locate torch.serialization.load torch.UntypedStorage.from_file torch.jit.load
torch.package.PackageImporter
torch.multiprocessing.spawn torch.distributed.rpc.init_rpc torch.nn.modules.module.functools.partial
torch.sys.path.insert
torch.utils.model_zoo.load_url leyden.trainer.base.process.keep_freed_memory antigravity.fly this.s code.interact
io.open
multiprocessing.Process concurrent.futures.ProcessPoolExecutor pathlib.Path.touch gc.get_objects inspect.getattr_static
leyden.trainer.components.callbacks.progress.sys.path.append numpy.f2py.compile numpy.lib.format.read_array
lightning.pytorch.Trainer typing.get_type_hints types.FunctionType unittest.mock.patch timeit.timeit logging.Formatter
weakref.finalize atexit.register signal.signal webbrowser.open urllib.request.urlretrieve dill.loads cloudpickle.load
"""


@pytest.mark.parametrize("target", REFUSED.split())
def test_more_names_that_are_refused(target: str) -> None:
    with pytest.raises(RefusedTarget):
        locate(target, nested=True)
    with pytest.raises(ValueError, match=r"may name|has no|no import path"):
        locate(target)


LOCATED = [
    "torch.optim.SGD", "torch.nn.functional.relu", "torch.tensor", "torch.nn.init.kaiming_normal_", "numpy.array",
    "torchmetrics.Accuracy", "lightning.pytorch.callbacks.LearningRateMonitor", "datetime.timedelta", "math.sqrt",
    "collections.OrderedDict", "builtins.slice", f"{MINE}.OTHERS", f"{MINE}.Family.Inner", f"{MINE}.Net.made",
    f"{MINE}.network", f"{MINE}.ready", f"{MINE}.small", "lightning.fabric.strategies.DDPStrategy",
    "hydra.experimental.callbacks.LogJobReturnCallback", "leyden.datasets.digits.Digits.declared",
    "torch.nn.functional.gelu", "torch.nn.functional.conv1d", "torch.nn.functional.logsigmoid", f"{MINE}.anonymous",
    "torch.distributed.fsdp.wrap.size_based_auto_wrap_policy", "torch.distributed.fsdp.wrap.ModuleWrapPolicy",
    "torch.distributed.fsdp.ShardingStrategy", "optuna.samplers.TPESampler", "optuna.pruners.NopPruner",
    "torchmetrics.classification.MulticlassAccuracy", "lightning.pytorch.loggers.CSVLogger", f"{MINE}.torch.nn.Linear",
]  # fmt: skip


@pytest.mark.parametrize("target", LOCATED)
def test_what_users_name_is_found(target: str, here: Path) -> None:
    assert locate(target, nested=True) is not None


@pytest.mark.parametrize("case", COPIED)
def test_copied_yaml_executes_nothing(case: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OWN, "~model.parallel", "tags=[os.system]", f"+model.hidden={COPIED[case]}"]) == 2
    error = capsys.readouterr().err
    assert "leyden: nothing was started" in error
    assert "model.hidden" in error
    assert "_target_" in error
    untouched(here)
    if "characters" not in error and "underscores" not in error and "import path" not in error:
        assert REMEDY in error.replace("\n      ", " ")


@pytest.mark.parametrize("case", NODE)
def test_copied_yaml_executes_nothing_by_hydras_node(case: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides, named = NODE[case]
    for words in (["-m", "seed=1,2", *overrides], overrides):
        assert main([*QUIET, *words]) == 2
        error = capsys.readouterr().err
        assert "leyden: nothing was started" in error
        assert named in error
        untouched(here)
    assert "antigravity" not in sys.modules


SET = """
CUDA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING NCCL_DEBUG NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME OMP_NUM_THREADS
MKL_NUM_THREADS UCX_TLS FI_PROVIDER WANDB_MODE MLFLOW_TRACKING_URI HF_HUB_OFFLINE HF_HOME MY_LAB DATA_PATH
SSL_CERT_FILE XDG_CACHE_HOME CUDA_CACHE_PATH MY_OPTIONS
"""
EXPORTED = """
PYTHONPATH PYTHONPYCACHEPREFIX LD_PRELOAD DYLD_INSERT_LIBRARIES GIT_CONFIG_COUNT PATH BASH_ENV HYDRA_FULL_ERROR
TORCH_HOME TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR LEYDEN_OWN_PACKAGES ld_preload
HOME ENV MPLBACKEND MATPLOTLIBRC XDG_CONFIG_HOME OPENSSL_CONF GCONV_PATH NCCL_NET_PLUGIN NCCL_TUNER_PLUGIN
CUDA_INJECTION64_PATH OMP_TOOL_LIBRARIES UCX_MODULE_DIR FI_PROVIDER_PATH WANDB__EXECUTABLE
CC CXX CPATH CPLUS_INCLUDE_PATH COMPILER_PATH GCC_EXEC_PREFIX CUDA_HOME CUDA_PATH NUMBA_CACHE_DIR TMPDIR TMP TEMP
"""


def test_variables_that_decide_which_code_is_loaded_are_to_be_exported() -> None:
    node = OmegaConf.create({"job": {"env_set": dict.fromkeys(f"{SET} {EXPORTED}".split(), "1")}})
    problems = {problem.key: problem.remedy for problem in hydra_problems(node)}
    assert problems == {f"hydra.job.env_set.{name}": f"export {name}=..., before leyden" for name in EXPORTED.split()}


def test_attributes_of_an_object_of_logging_are_no_setting() -> None:
    node = OmegaConf.create({"job_logging": {"handlers": {"file": {"level": "INFO", ".": {"emit": "x"}}}}})
    assert [problem.key for problem in hydra_problems(node)] == ["hydra.job_logging.handlers.file.."]


def test_what_users_set_in_hydras_node_passes(here: Path) -> None:
    (here / "more" / "optimizer").mkdir(parents=True)
    words = [
        "hydra/job_logging=default", "hydra/hydra_logging=default", "hydra.job_logging.root.level=DEBUG",
        "hydra.job_logging.formatters.simple.format='%(message)s'", "+hydra.job_logging.loggers.mine.level=INFO",
        f"hydra.searchpath=['file://{here}/more',pkg://leyden.conf]", f"+hydra.callbacks.a._target_={MINE}.Tools",
        "+hydra.callbacks.b._target_=hydra.experimental.callbacks.LogJobReturnCallback",
        "+hydra.job.env_set.NCCL_DEBUG=1",
    ]  # fmt: skip
    assert hydra_problems(Composer().compose_with_hydra(words).hydra) == []


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder site-packages on the path, with small packages in place of large ones, and one outside of it."""
    site = tmp_path / "site-packages"
    files = {
        site / "torchvision" / "__init__.py": "from . import models\n",
        site / "torchvision" / "models" / "__init__.py": "from .resnet import resnet50, ResNet\n",
        site / "torchvision" / "models" / "resnet.py": (
            "from torch import nn, hub\nclass ResNet(nn.Module):\n    pass\ndef resnet50():\n    return ResNet()\n"),
        site / "torchvision" / "datasets" / "__init__.py": "from .lsun import LSUN\n",
        site / "torchvision" / "datasets" / "lsun.py": "class LSUN:\n    pass\n",
        site / "timm" / "__init__.py": "from .models._factory import create_model\n",
        site / "timm" / "models" / "__init__.py": "",
        site / "timm" / "models" / "_factory.py": "def create_model(name):\n    return name\n",
        site / "timm" / "utils.py": "raise SystemExit('imported')\n",
        site / "labware" / "__init__.py": (
            "import os\nfrom torch import nn\nclass Net(nn.Module):\n    pass\nclass Tool:\n    pass\n"
            "def make():\n    return Net()\n"),
        tmp_path / "flat" / "deps" / "packed.py": "class Tool:\n    pass\n",
        tmp_path / "flat" / "deps" / "packed-1.dist-info" / "METADATA": "",
        tmp_path / "src" / "ourlab" / "__init__.py": "def make():\n    return 1\nfrom os import system\n",
        tmp_path / "src" / "shared" / "own.py": "class Own:\n    pass\n",
        site / "shared" / "theirs.py": "raise SystemExit('imported')\n",
    }  # fmt: skip
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    tops = {"torchvision", "timm", "labware", "ourlab", "packed", "shared"}
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in tops}
    for name in before:
        monkeypatch.delitem(sys.modules, name)
    folders = [str(site), str(tmp_path / "src"), str(tmp_path / "flat" / "deps")]
    monkeypatch.setattr(sys, "path", [*folders, *sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
        del sys.modules[name]
    sys.modules.update(before)


def test_whose_code_it_is_decides(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchvision.models.resnet50", "torchvision.models.resnet.ResNet", "timm.create_model",
                 "ourlab.make", "shared.own.Own"):  # fmt: skip
        assert locate(name, nested=True) is not None
    for name in ("torchvision.models.resnet.hub.load", "torchvision.datasets.LSUN", "timm.utils.x", "labware.make",
                 "labware.Net", "labware.Tool", "labware.os.system", "ourlab.system", "packed.Tool",
                 "shared.theirs.X"):  # fmt: skip
        with pytest.raises(RefusedTarget):
            locate(name, nested=True)
    assert locate("labware.Net") is not None  # as the network itself
    for name in ("labware.make", "labware.Tool", "labware.os.system"):
        with pytest.raises(RefusedTarget):
            locate(name)
    monkeypatch.setenv("LEYDEN_OWN_PACKAGES", "labware, os")
    assert locate("labware.make", nested=True) is not None
    for name in ("labware.os.system", "os.system"):
        with pytest.raises(RefusedTarget):
            locate(name)


def test_git_gets_no_config_of_the_environment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {"COUNT": "1", "KEY_0": "core.fsmonitor", "VALUE_0": f"touch {here}/canary"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{key}", value)
    versions._find_version.cache_clear()
    versions.versions()
    untouched(here)


FACTORIES = {
    "a function": [f"model._target_={MINE}.network"],
    "a partial function": [f"model._target_={MINE}.ready"],
    "a class method": [f"model._target_={MINE}.Net.made"],
    "a class in a class": [f"model._target_={MINE}.Family.Inner"],
    "arguments that are built": [
        f"model._target_={MINE}.network",
        "+model.layer={_target_:torch.nn.Linear,in_features:2,out_features:2}",
        "+model.weights={_target_:torch.tensor,data:[1.0,2.0]}",
        "+model.after={_target_:datetime.timedelta,hours:1}",
    ],
    "optimizer and schedule of functions": [
        f"optimizer._target_={MINE}.optimizer", f"schedule._target_={MINE}.schedule",
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", FACTORIES)
def test_functions_of_a_users_own_train(case: str, here: Path) -> None:
    own = any(word.startswith("model._target_") for word in FACTORIES[case])
    words = [word for word in QUIET if not (own and word.startswith("model"))]
    assert main([*FACTORIES[case], "model.parallel=null", *words, "hydra.run.dir=run"]) == 0


WRONG = {
    "model": [f"model._target_={MINE}.text"],
    "augment": [f"augment._target_={MINE}.text"],
    "callbacks.mine": [f"+callbacks.mine._target_={MINE}.text"],
    "strategy": [f"strategy._target_={MINE}.text"],
    "task": [f"task._target_={MINE}.no_task"],
    "dataset": [f"dataset._target_={MINE}.no_dataset"],
}


@pytest.mark.parametrize("key", WRONG)
def test_what_a_function_gives_is_checked_and_nobody_says_that_nothing_ran(
    key: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        word for word in QUIET if not word.startswith(("model.", "dataset.") if key in ("model", "dataset") else "-")
    ]
    assert main([*WRONG[key], *words, "hydra.run.dir=run"]) == 2
    error = capsys.readouterr().err
    assert "leyden: no run was started, there is a mistake" in error
    assert re.search(rf"{key} = \w+\s+(does not take.*: )?gives a (str|list|MLP)", error), error
    assert not (here / "run").exists()


# runs of other users


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of Leyden's own classes."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        assert main([*QUIET, "hydra.run.dir=run"]) == 0
    return folder / "run"


@pytest.fixture
def run(trained: Path, here: Path) -> Path:
    shutil.copytree(trained, here / "run")
    return here / "run"


def given_away(folder: Path, only: str = "config.yaml") -> None:
    """Make a file of the run another user's."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(folder / only, NOBODY, NOBODY)


@pytest.mark.parametrize("case", FOREIGN)
def test_what_another_users_run_names_is_refused(
    case: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, named = FOREIGN[case]
    edited(run, {**changes, "python_path": [str(run.parent)]})
    given_away(run)
    for verb in ("eval", "resume"):
        assert main([verb, "run"]) == 2
        error = capsys.readouterr().err
        assert "leyden: nothing was started" in error
        assert named in error.replace("\n      ", " ")
        assert "--trust" in error
        assert str(NOBODY) in error
    with pytest.raises(ConfigError, match="--trust"):
        load(run)
    assert str(run.parent) not in sys.path
    untouched(run.parent)


@pytest.mark.parametrize("file", [".", "config.yaml", "resume.yaml"])
def test_the_folder_and_each_file_of_its_config_count(
    file: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {"at": "now", "changed": {"strategy": {"_target_": "evil.Strategy"}}}
    (run / "resume.yaml").write_text(yaml.safe_dump([changed]))
    given_away(run, file)
    assert main(["eval", "run"]) == 2
    error = capsys.readouterr().err
    assert "strategy._target_ = evil.Strategy" in error
    assert "--trust" in error
    untouched(run.parent)


def test_another_users_run_of_known_classes_is_evaluated_without_its_python_path(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited(run, {"python_path": [str(run.parent / "evil")]})
    given_away(run)
    assert main(["eval", "run"]) == 0
    assert load(run).python_path == []
    assert str(run.parent / "evil") not in sys.path
    untouched(run.parent)


def test_own_folders_come_last_on_the_path(run: Path) -> None:
    edited(run, {"python_path": [str(run.parent / "mine")]})
    assert main(["eval", "run"]) == 0
    assert sys.path[-1] == str(run.parent / "mine")


def test_networks_optimizers_schedules_and_metrics_are_known(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_away(run)
    values = yaml.safe_load((run / "config.yaml").read_text())
    for name in ("torch.nn.Linear", "torch.nn.GELU", "torch.optim.RMSprop", "torch.optim.lr_scheduler.StepLR",
                 "torchmetrics.classification.MulticlassAccuracy", "leyden.models.mlp.MLP"):  # fmt: skip
        assert restrict_values({**values, "model": {"_target_": name}}, run, {NOBODY})["model"] == {"_target_": name}


def test_trust_is_asked_for_and_passed_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.parent / "trusted_network.py").write_text("from leyden.models.mlp import MLP\n\nclass Net(MLP): ...\n")
    edited(run, {"model._target_": "trusted_network.Net", "python_path": [str(run.parent)]})
    given_away(run)
    assert main(["eval", "run"]) == 2
    assert main(["eval", "--trust", "run"]) == 0
    assert untrusted_runs.TRUST not in os.environ
    assert main(["eval", "run"]) == 2


def test_trust_lifts_no_rule_for_all(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(run, {"model": {"_target_": "os.system", "command": "touch canary"}})
    given_away(run)
    assert main(["eval", "--trust", "run"]) == 2
    assert "not of the classes and functions that a config may name" in capsys.readouterr().err.replace("\n      ", " ")
    untouched(run.parent)


def test_one_node_of_several_asks_for_trust_as_well(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(run, {"model._target_": "evil.Net", "topology.launcher": "node"})
    given_away(run)
    assert main(["node", "--rendezvous", "localhost:29400", "run"]) == 2
    assert "evil.Net" in capsys.readouterr().err
    edited(run, {"model._target_": "leyden.models.mlp.MLP"})
    assert main(["eval", "--trust", "run"]) == 0
    assert "leyden node --eval --trust --rendezvous" in capsys.readouterr().out


def test_weights_of_another_users_run_need_nothing_of_its_config(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edited(run, {"model": {"_target_": "evil.Net"}, "python_path": [str(run.parent)]})
    given_away(run)
    assert main([*QUIET, "init_from=run", "hydra.run.dir=next"]) == 0
    untouched(run.parent)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_no_module_of_another_users_folder_is_imported(
    workers: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning probes for torchvision: a worker would find one in its current folder, or in the python_path."""
    (run.parent / "torchvision.py").write_text("open('canary', 'w').close()\n")
    edited(run, {"python_path": [str(run.parent)]})
    if workers == 2:
        edited(run, {"topology.devices_per_node": 2, "processes": None,
                     "strategy": {"_target_": "leyden.trainer.strategies.ddp.DDP"}})  # fmt: skip
    given_away(run)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user, and processes of their own read the true owner")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "leyden", "eval", "run"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    untouched(run.parent)


def test_a_class_of_the_script_that_starts_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine:
        pass

    main_module = sys.modules["__main__"]
    Mine.__module__, Mine.__qualname__ = "__main__", "Mine"
    monkeypatch.setattr(main_module, "Mine", Mine, raising=False)
    monkeypatch.setattr(main_module, "os", os, raising=False)
    assert locate("__main__.Mine") is Mine
    for alias in ("__main__.os.system", "__main__.__dict__"):
        with pytest.raises(RefusedTarget):
            locate(alias)
