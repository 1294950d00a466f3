"""Optimizer groups, schedules, starting weights, repeatability and the accuracy that all of it adds up to."""

import math
from pathlib import Path

import pytest
import torch
import yaml
from folders import CONF
from runs import TINY, Freeze, metrics
from safetensors.torch import save_file

from leyden.datasets.augment import CropFlip
from leyden.datasets.digits import Digits
from leyden.models.lenet5 import LeNet5
from leyden.trainer.base.rng import generator, mix, seed_everything
from leyden.trainer.components.lr_schedules import WarmupCosine
from leyden.trainer.config.locate import locate
from leyden.trainer.config.schema import Model, Optimizer
from leyden.trainer.config.targets import build, takes
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.core.network.parameter_groups import group_options, parameter_groups, undecayed_names
from leyden.trainer.entrypoints.start import start

MODELS = CONF / "model"


class Tokens(torch.nn.Module):
    """A model as timm's are: names that it wants without decay, relative to itself, and one that it does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(9, 4))
        self.token = torch.nn.Parameter(torch.zeros(1, 1, 4))
        self.local = torch.nn.Module()
        self.local.bias = torch.nn.Parameter(torch.zeros(4, 5, 5))
        self.head = torch.nn.Linear(4, 1)

    def no_weight_decay(self) -> set[str]:
        return {"table", "distillation_token"}


def test_what_a_model_names_is_left_out_of_the_decay() -> None:
    task = torch.nn.ModuleDict({"model": Tokens()})
    left = {"model.table", "model.token", "model.local.bias", "model.head.bias"}
    assert undecayed_names(task) & {name for name, _ in task.named_parameters()} == left
    keys = {"decay_bias_and_norm": False, "groups": [], "layer_decay": None, "lr_batch_size": None}
    sgd = Optimizer.model_validate({"_target_": "torch.optim.SGD", "lr": 0.1, "weight_decay": 0.5, **keys})
    decayed, free = parameter_groups(task, group_options(task, sgd, 64, torch.optim.SGD))
    assert [tuple(p.shape) for p in decayed["params"]] == [(1, 4)], "a binary classifier's weight is a weight"
    assert len(free["params"]) == 4
    assert ("weight_decay" in decayed, free["weight_decay"]) == (False, 0.0)
    everything = sgd.model_copy(update={"decay_bias_and_norm": True})
    assert len(parameter_groups(task, group_options(task, everything, 64, torch.optim.SGD))) == 5


MODEL_KEYS = {"pretrained": None, "freeze": [], "unfreeze_at": None}


@pytest.mark.parametrize("file", sorted(MODELS.glob("*.yaml")), ids=lambda file: file.stem)
def test_which_parameters_of_the_shipped_models_are_decayed(file: Path) -> None:
    """All matrices and filters; of the vision transformers not the class token and the positions."""
    settings = Model.model_validate({**MODEL_KEYS, **yaml.safe_load(file.read_text())})
    if file.stem == "timm":
        pytest.importorskip("timm")
        settings = Model.model_validate({**settings.model_dump(by_alias=True), "name": "vit_tiny_patch16_224"})
    side = {"local_net": 32, "cots_autoencoder": 200}.get(file.stem, 224)
    known = {"image_shape": (3, side, side), "classes": 10, "seed": 0}
    taken = {key: value for key, value in known.items() if takes(locate(settings.target), key)}
    with torch.device("meta"):
        model = build(settings, **taken)
    left = undecayed_names(model)
    matrices = {name for name, p in model.named_parameters() if p.ndim > 1}
    shared = {"vit_small": {"class_token", "positions"}, "vit_base": {"class_token", "positions"}}
    shared["timm"] = {"network.cls_token", "network.pos_embed"}
    assert matrices & left == shared.get(file.stem, set())


def test_warmup_then_cosine() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = WarmupCosine(optimizer, total_steps=12, warmup_steps=3, final_fraction=0.1)
    rates = []
    for _ in range(13):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:4] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert rates[3:] == pytest.approx([2 * (0.1 + 0.9 * (1 + math.cos(math.pi * t / 9)) / 2) for t in range(10)])
    with pytest.raises(ValueError, match="warmup_steps=13"):
        WarmupCosine(optimizer, total_steps=12, warmup_steps=13)


def test_init_from_a_safetensors_file_with_another_head(
    freeze: Freeze, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = freeze("first", *TINY)
    start(first)
    kept = {n: w.contiguous() for n, w in checkpoint_io.read(first / "checkpoints" / "last.ckpt")["model"].items()}
    kept["model.layers.3.weight"] = torch.zeros(100, 16)
    save_file({name.removeprefix("model."): weight for name, weight in kept.items()}, tmp_path / "w.safetensors")
    capsys.readouterr()
    second = freeze("second", *TINY, f"init_from={tmp_path}/w.safetensors", "trainer.max_steps=1", "optimizer.lr=1e-12")
    start(second)
    output = capsys.readouterr().out
    assert "3 of 4 tensors" in output
    assert "started fresh: model.layers.3.weight" in output
    weights = checkpoint_io.read(second / "checkpoints" / "last.ckpt")["model"]
    assert torch.allclose(weights["model.layers.1.weight"], kept["model.layers.1.weight"], atol=1e-6)


def test_init_from_something_else_is_refused(freeze: Freeze, tmp_path: Path) -> None:
    save_file({"unheard.of": torch.zeros(2)}, tmp_path / "w.safetensors")
    run_dir = freeze("run", *TINY, f"init_from={tmp_path}/w.safetensors")
    with pytest.raises(ValueError, match="none of its 1 tensors"):
        start(run_dir)
    assert not run_dir.exists()


def test_the_same_seed_gives_the_same_run_and_another_does_not(freeze: Freeze) -> None:
    runs = [freeze(name, *TINY, f"seed={seed}") for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    for run_dir in runs:
        start(run_dir)
    a, b, c = (metrics(run_dir)["val/loss"] for run_dir in runs)
    assert a == b
    assert a != c


def test_the_optimizer_reaches_the_schedule_end(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, "schedule.warmup_steps=3", "schedule.final_fraction=0.5", "optimizer.lr=0.01")
    start(run_dir)
    assert metrics(run_dir)["lr"] == pytest.approx(0.005)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(5))
def test_lenet5_learns_the_digits(freeze: Freeze, seed: int) -> None:
    run_dir = freeze("run", f"seed={seed}")
    assert start(run_dir) == 0
    assert metrics(run_dir)["val/acc"] > 0.97


def test_a_run_is_the_plain_loop_that_one_would_write(freeze: Freeze) -> None:
    run_dir = freeze("run", "trainer.max_epochs=2", "seed=3")
    start(run_dir)
    net = by_hand(epochs=2, seed=3)
    for name, weight in checkpoint_io.read(run_dir / "checkpoints" / "last.ckpt")["model"].items():
        assert torch.equal(weight, net.state_dict()[name.removeprefix("model.")]), name


def by_hand(epochs: int, seed: int) -> torch.nn.Module:
    """The default run without Leyden's loop, tasks, Fabric, loggers: what is shared is the order and the draws."""
    seed_everything(seed)
    digits, crop = Digits("train"), CropFlip(padding=2, flip=False)
    kept = sorted(torch.randperm(1437, generator=generator(0)).tolist()[287:])
    net = LeNet5(10, (1, 32, 32))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    steps = epochs * 18
    for epoch in range(epochs):
        order = torch.randperm(1150, generator=generator(seed, epoch, 0))
        for number, batch in enumerate(order.split(64)):
            samples = [(crop(digits[kept[i]][0], mix(seed, epoch, i)), digits[kept[i]][1]) for i in batch.tolist()]
            images = torch.stack([image for image, _ in samples]).float().div(255)
            images = images.sub(torch.tensor(digits.mean)).div(torch.tensor(digits.std))
            for group in optimizer.param_groups:
                group["lr"] = 0.02 * (1 + math.cos(math.pi * (epoch * 18 + number) / steps)) / 2
            optimizer.zero_grad()
            labels = torch.tensor([label for _, label in samples])
            torch.nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
    return net
