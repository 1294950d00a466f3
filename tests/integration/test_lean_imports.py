"""What Leyden keeps out of the imports of others, and that a user's own import gets the real thing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FIRST = [
    pytest.param("import torchmetrics", id="torchmetrics", marks=pytest.mark.campaign),
    pytest.param("import lightning.pytorch", id="Lightning", marks=pytest.mark.campaign),
    pytest.param("import leyden.trainer.core.state", id="Leyden's state"),
]
AFTER = """
import sys
assert "torchmetrics" in sys.modules
assert "scipy.signal" not in sys.modules
import scipy
assert scipy.signal.butter(2, 0.5)
import scipy.signal, torchmetrics, torch
assert scipy.signal.find_peaks([0, 1, 0])[0].tolist() == [1]
assert torchmetrics.AUROC(task="binary")(torch.tensor([0.1, 0.9]), torch.tensor([0, 1])) == 1
left = [type(finder).__module__ for finder in sys.meta_path if type(finder).__module__.startswith("leyden.")]
assert left == ["leyden.trainer.base.lean_imports.compiler"]
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("first", FIRST)
def test_torchmetrics_is_imported_without_scipys_signal(first: str) -> None:
    run(f"import leyden.trainer\n{first}\n{AFTER}")


@pytest.mark.slow
def test_an_earlier_import_of_the_users_is_left_alone() -> None:
    run("import scipy.signal as mine, leyden.trainer, torchmetrics, sys\nassert sys.modules['scipy.signal'] is mine")


BROKEN = """
import sys
import leyden.trainer
import lightning.pytorch, torchmetrics, torch
assert torchmetrics.Accuracy(task="binary")(torch.tensor([0.1, 0.9]), torch.tensor([0, 1])) == 1
from lightning_utilities.core.imports import RequirementCache
assert RequirementCache("torchvision")
from leyden.models.timm_model import TimmModel
try:
    TimmModel(2, (3, 32, 32), "resnet18")
except ValueError as error:
    print(error)
"""


def test_a_torchvision_for_another_torch_is_one_sentence_where_it_is_needed(tmp_path: Path) -> None:
    """What pip makes of `timm` beside a torch that it does not replace."""
    for name, code in (("torchvision", "raise RuntimeError('operator torchvision::nms does not exist')"),
                       ("timm", "import torchvision")):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(code)
    (tmp_path / "torchvision-0.28.0.dist-info").mkdir()
    (tmp_path / "torchvision-0.28.0.dist-info/METADATA").write_text("Name: torchvision\nVersion: 0.28.0\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "needs a torchvision that was built for torch" in done.stdout
    assert f"pip install --upgrade torchvision torch=={torch.__version__}" in done.stdout


WITHOUT_COMPILER = """
import inspect, os, sys, threading, traceback
import leyden.trainer
import lightning.pytorch, torch
from lightning.fabric.wrappers import OptimizedModule

def step():
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

module = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(module.parameters())
step()
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
torch.nn.parallel.DistributedDataParallel(module)(torch.ones(1, 2)).sum().backward()
import torch._dynamo
inspect.getmodule(step)
held = torch._dynamo
assert not isinstance(module, OptimizedModule)
assert not {"sympy", "torch._dynamo.eval_frame"} & set(sys.modules)

def use_of_threads():
    missed = []
    def use():
        try:
            torch._dynamo.config.verbose
        except AttributeError as error:
            missed.append(error)
    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not missed

def module_below():
    from torch._dynamo.utils import counters
    assert counters is torch._dynamo.utils.counters

def module_of_settings():
    import torch._dynamo.config as config
    assert config is torch._dynamo.config and config.__spec__.name == config.__name__

USES = {
    "compile": lambda: torch.compile(module, backend="eager")(torch.ones(1, 2)),
    "a module below": module_below,
    "a module of settings": module_of_settings,
    "one that it does not import itself": lambda: __import__("torch._dynamo.backends.cudagraphs"),
    "an attribute": lambda: torch._dynamo.config.verbose,
    "an attribute of a part": lambda: torch._dynamo.trace_rules.lookup,
    "a decorator": lambda: torch.compiler.disable(step)(),
    "several threads": use_of_threads,
}

def check(use):
    use()
    assert sys.modules["torch._dynamo"] is held is torch._dynamo and type(held) is type(sys)
    assert held.__spec__.loader is held.__loader__ and type(held.__loader__).__module__.endswith("_external")
    for name, below in list(sys.modules.items()):
        if name.startswith("torch._dynamo."):
            assert below.__spec__.name == name and type(below.__spec__.loader).__module__.endswith("_external"), name
    assert isinstance(torch.compile(module, backend="eager"), OptimizedModule)
    assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("leyden.")]
    step()
    # what is not to be compiled is not: neither torch's own functions nor Lightning's
    from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
    for function in (torch.optim.Optimizer.zero_grad, _ResultCollection.log):
        inner = function.__wrapped__
        assert getattr(inner, "__dynamo_disable")._torchdynamo_disable, function

for name in chosen or USES:
    pid = os.fork()
    if not pid:
        try:
            check(USES[name])
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, name
torch.distributed.destroy_process_group()
"""


IN_CI = ["compile", "several threads"]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [IN_CI, pytest.param([], marks=pytest.mark.campaign)], ids=["some uses", "all uses"])
def test_torchs_compiler_is_imported_by_its_first_use_and_then_as_ever(chosen: list[str]) -> None:
    run(f"chosen = {chosen}\n{WITHOUT_COMPILER}")


def test_a_run_that_compiles_nothing_does_not_import_the_compiler(tmp_path: Path) -> None:
    words = ["model=mlp", "dataset=synthetic", "trainer.max_steps=2", f"hydra.run.dir={tmp_path / 'run'}"]
    run(f"""
import sys
from leyden.trainer.cli.main import main
assert main({words!r}) == 0
assert "lightning.pytorch" in sys.modules
assert not {{"torch._dynamo.eval_frame", "torch._inductor"}} & set(sys.modules)
""")
