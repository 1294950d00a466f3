"""Private names of Hydra, Lightning and torch: their shapes in the versions that they were read in.

A new version fails here first, by the name that has changed, and not in the middle of a run.
"""

import ast
import inspect
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.modules.batchnorm
import torch.nn.modules.dropout
from folders import ROOT
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision
from lightning.fabric.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch import LightningModule
from omegaconf import OmegaConf
from omegaconf.errors import ValidationError
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

from leyden.trainer.compose import hydra_compat
from leyden.trainer.compose.composer import Composer, without_hydra
from leyden.trainer.core import lightning_compat, torch_compat
from leyden.trainer.core.network import fake_tensors
from leyden.trainer.planner import torch_compat as planner_compat
from leyden.trainer.strategies.fsdp import torch_compat as fsdp_compat
from leyden.trainer.sweep.results import BASIC

TRAINER = ROOT / "trainer"
CONSTRAINTS = TRAINER.parent / "constraints.txt"
COMPAT = {
    "compose/hydra_compat.py",
    "core/network/fake_tensors.py",
    "core/lightning_compat.py",
    "core/torch_compat.py",
    "planner/torch_compat.py",
    "strategies/fsdp/torch_compat.py",
}


@pytest.mark.parametrize(
    ("module", "package"),
    [
        (hydra_compat, "hydra-core"),
        (lightning_compat, "lightning"),
        (torch_compat, "torch"),
        (fsdp_compat, "torch"),
        (fake_tensors, "torch"),
        (planner_compat, "torch"),
    ],
)
def test_the_version_that_was_read_is_the_tested_one(module: Any, package: str) -> None:
    pinned = dict(line.split("==") for line in CONSTRAINTS.read_text().splitlines() if "==" in line)
    assert pinned[package] == module.READ_IN, f"read the private names of {package} again, then change READ_IN"
    assert module.READ_IN in (module.__doc__ or "")


def parameters(call: Any) -> list[str]:
    return list(inspect.signature(call).parameters)


def test_hydra() -> None:
    loader = hydra_compat.ConfigLoader.__mro__[1]
    assert parameters(loader._parse_overrides_and_create_caching_repo) == ["self", "config_name", "overrides"]
    assert parameters(loader.load_configuration) == [
        "self", "config_name", "overrides", "run_mode", "from_shell", "validate_sweep_overrides",
    ]  # fmt: skip
    assert parameters(hydra_compat.Hydra.__init__) == ["self", "task_name", "config_loader"]
    for name, expected in {
        "show_cfg": ["self", "config_name", "overrides", "cfg_type", "package", "resolve"],
        "show_info": ["self", "info", "config_name", "overrides"],
    }.items():
        assert parameters(getattr(hydra_compat.Hydra, name))[: len(expected)] == expected
    assert parameters(hydra_compat.Callbacks.__init__) == ["self", "config"]
    assert {"on_job_start", "on_job_end"} <= set(dir(hydra_compat.Callbacks))
    assert hydra_compat.Callbacks().callbacks == []
    sweeper = hydra_compat.basic_sweeper()
    assert f"{sweeper.__module__}.{sweeper.__qualname__}" == BASIC
    assert "overrides" in vars(sweeper(max_batch_size=None))


def test_hydra_composes_through_the_open_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hydra_compat, "_read", {})
    path = hydra_compat.create_config_search_path("pkg://leyden.conf")
    loaded: list[str] = []
    loader = hydra_compat.ConfigLoader(path, lambda file: loaded.append(file.name), lambda place: None)
    loader.load_configuration("train", ["model=mlp"], RunMode.RUN)
    assert {"train.yaml", "mlp.yaml"} <= set(loaded)
    parsed, repository = loader.parse_typed("train", ["model=mlp"])
    assert [override.key_or_group for override in parsed] == ["model"]
    file = hydra_compat.yaml_file(repository.delegate, "model/mlp")
    assert file is not None
    assert file.name == "mlp.yaml"
    assert hydra_compat.yaml_file(repository.delegate, "model/no_such_model") is None


def test_a_defaults_list_takes_the_choice_of_another_group(tmp_path: Path) -> None:
    """As hydra.cc's "interpolation in the Defaults List": the choices are collected for such lists alone."""
    for name, text in {
        "mine": "defaults: [{size: small}, {shape: '${size}_${kind}'}, {kind: square}, _self_]",
        "size/small": "a: 1", "size/large": "a: 2", "kind/square": "b: 3",
        "shape/small_square": "c: 4", "shape/large_square": "c: 5",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(text)
    path = hydra_compat.create_config_search_path(f"file://{tmp_path}")
    loader = hydra_compat.ConfigLoader(path, lambda file: None, lambda place: None)
    for words, shape in ([], 4), (["size=large"], 5), ([], 4):
        composed = loader.load_configuration("mine", words, RunMode.RUN)
        assert composed.shape.c == shape
        composed.shape.c = 9


def test_hydra_keeps_the_exception_of_a_failed_job() -> None:
    failed, error = JobReturn(status=JobStatus.FAILED), ValueError("shape")
    failed.return_value = error
    assert hydra_compat.failure_of(failed) is error


def test_lightning() -> None:
    assert parameters(lightning_compat.BackwardSyncControl.no_backward_sync) == ["self", "module", "enabled"]
    assert "_backward_sync_control" in vars(SingleDeviceStrategy(torch.device("cpu")))
    assert lightning_compat.can_skip_sync(DDPStrategy())
    assert not lightning_compat.can_skip_sync(SingleDeviceStrategy(torch.device("cpu")))
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    precision = lightning_compat.precision_of(fabric)
    assert isinstance(precision, MixedPrecision)
    assert precision is fabric.strategy.precision
    assert lightning_compat.autocast_dtype(precision) is torch.bfloat16
    module = nn.Linear(2, 2)
    assert lightning_compat.forward_module(fabric.setup_module(module)) is module


def test_lightning_loaders() -> None:
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=2)
    other = lightning_compat.with_sampler(loader, SequentialSampler([0, 1]))
    assert [batch[0].tolist() for batch in other] == [[0, 1]]
    assert other.batch_size == 2
    wrapped = Fabric(accelerator="cpu", devices=1).setup_dataloaders(loader, move_to_device=False)
    assert isinstance(lightning_compat.without_fabric(wrapped), DataLoader)


def test_lightning_device_and_dtype() -> None:
    module = LightningModule()
    lightning_compat.set_device_and_dtype(module, torch.device("meta"), torch.float64)
    assert (module.device.type, module.dtype) == ("meta", torch.float64)
    lightning_compat.set_device_and_dtype(module, torch.device("cpu"), None)
    assert (module.device.type, module.dtype) == ("cpu", torch.float64)


def test_torch() -> None:
    assert issubclass(nn.BatchNorm2d, torch_compat.BatchNormBase)
    assert issubclass(nn.InstanceNorm2d, torch_compat.NormBase)
    assert issubclass(torch_compat.BatchNormBase, torch_compat.NormBase)
    assert all(issubclass(kind, torch_compat.DropoutBase) for kind in (nn.Dropout, nn.AlphaDropout))
    assert parameters(torch_compat.set_group_timeout) == ["timeout", "group"]
    assert not torch_compat.is_traceable_wrapper_subclass(torch.ones(1))


def test_torch_draws_an_order_ahead() -> None:
    loader = DataLoader(TensorDataset(torch.arange(8)), shuffle=True)
    torch.manual_seed(0)
    expected = [batch[0].item() for batch in loader]
    torch.manual_seed(0)
    batches = iter(loader)
    assert torch_compat.draw_order(batches)
    torch.manual_seed(1)
    assert [batch[0].item() for batch in batches] == expected
    assert not torch_compat.draw_order(iter([]))


def test_a_loader_that_goes_on_draws_what_a_new_one_draws_before_its_order() -> None:
    loader = DataLoader(TensorDataset(torch.arange(8)))
    for started in (True, False):
        loader._iterator = object() if started else None  # pyright: ignore[reportAttributeAccessIssue]
        torch.manual_seed(0)
        torch_compat.draw_base_seed(loader)
        if not started:
            iter(loader)
        drawn = torch.rand(1)
        torch.manual_seed(0)
        iter(loader)
        assert torch.equal(drawn, torch.rand(1))


def test_fsdp() -> None:
    gather, scatter = fsdp_compat.DefaultAllGather, fsdp_compat.DefaultReduceScatter
    assert parameters(gather.__call__) == ["self", "output_tensor", "input_tensor", "group", "async_op"]
    assert parameters(scatter.__call__) == ["self", "output_tensor", "input_tensor", "group", "op", "async_op"]
    assert parameters(gather.__init__) == parameters(object.__init__)


def test_private_modules_and_names_are_imported_by_compat_modules_alone() -> None:
    found = []
    for file in TRAINER.rglob("*.py"):
        if file.relative_to(TRAINER).as_posix() in COMPAT:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                private = [part for part in (*node.module.split("."), *(alias.name for alias in node.names))
                           if part.startswith("_") and not part.startswith("__")]  # fmt: skip
                if private and node.module.split(".")[0] in ("hydra", "lightning", "torch"):
                    found.append(f"{file.relative_to(TRAINER)}: {node.module} {private}")
    assert found == []


def test_fake_tensors() -> None:
    with fake_tensors.FakeTensorMode(allow_non_fake_inputs=True):
        assert (nn.Linear(2, 3)(torch.zeros(4, 2))).shape == (4, 3)


def test_a_forward_inside_of_backward_is_seen() -> None:
    seen: list[bool] = []

    def forward(x: Tensor) -> Tensor:
        seen.append(torch_compat.in_backward())
        return x.sin()

    y = checkpoint(forward, torch.ones(1, requires_grad=True), use_reentrant=False)
    assert isinstance(y, Tensor)
    y.backward()
    assert seen == [False, True]


def test_a_copy_of_a_composition_is_equal_and_shares_no_state() -> None:
    composed = Composer().compose_with_hydra(["model=mlp", "+path=${hydra:runtime.cwd}"])
    copied = deepcopy(composed)
    assert copied == composed
    assert OmegaConf.get_type(copied, "hydra") is OmegaConf.get_type(composed, "hydra")
    assert copied.hydra.mode is composed.hydra.mode
    assert OmegaConf.is_struct(copied)
    assert OmegaConf.is_readonly(copied.hydra)
    node, own = composed._get_node("seed"), copied._get_node("seed")
    assert node is not None
    assert own is not None
    assert own._get_root() is copied
    assert own._metadata == node._metadata
    OmegaConf.set_readonly(copied, True)
    own._set_flag("allow_objects", True)
    assert not OmegaConf.is_readonly(composed)
    assert node._get_flag("allow_objects") is None
    OmegaConf.get_cache(copied)["mine"]["x"] = 1
    assert "mine" not in OmegaConf.get_cache(composed)
    OmegaConf.set_readonly(copied.hydra, False)
    with pytest.raises(ValidationError):
        copied.hydra.job.chdir = "neither true nor false"


def test_the_users_keys_are_copied_without_hydras_node() -> None:
    composed = Composer().compose_with_hydra(["model=mlp"])
    user = without_hydra(composed)
    assert "hydra" not in user
    assert set(user) == set(composed) - {"hydra"}
    user.model.hidden = [7]
    assert composed.model.hidden != [7]
    assert composed.hydra.overrides.task == ["model=mlp"]
