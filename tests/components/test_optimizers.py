"""Optimizers against the updates of their papers, parameter groups, adaptive clipping; resumed and under strategies."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pool import Pool
from runs import TINY, Freeze, cut_back, distance, weights
from torch import nn

from leyden.models.resnet_cifar import ResNetCIFAR
from leyden.models.vit import ViT
from leyden.trainer.base.errors import ConfigError
from leyden.trainer.components.optimizers.layerwise import LAMB, LARS
from leyden.trainer.components.optimizers.lion import Lion
from leyden.trainer.components.optimizers.muon import Muon
from leyden.trainer.compose.checks import check_classes
from leyden.trainer.config.schema import Optimizer, load
from leyden.trainer.core.network.adaptive_clipping import clip_adaptively
from leyden.trainer.core.network.layer_order import layers_above
from leyden.trainer.core.network.parameter_groups import group_options, parameter_groups
from leyden.trainer.entrypoints.start import start

Pools = Callable[[int], Pool]
Array = Any
CURVATURE = np.linspace(0.5, 2.0, 12).reshape(4, 3)
"""Of the quadratic 1/2 sum c w^2, whose gradient is c w."""


def by_hand_lars(w: Array, t: int, kept: dict[str, Array], is_matrix: bool) -> Array:
    g = CURVATURE[: len(w), 0] * w if w.ndim == 1 else CURVATURE * w
    rate = 0.02 * np.sqrt((w**2).sum()) / (np.sqrt((g**2).sum()) + 0.1 * np.sqrt((w**2).sum())) if is_matrix else 1.0
    kept["v"] = 0.8 * kept.get("v", 0.0) + 0.3 * rate * (g + 0.1 * w)
    return w - kept["v"]


def by_hand_lamb(w: Array, t: int, kept: dict[str, Array], is_matrix: bool) -> Array:
    g = CURVATURE[: len(w), 0] * w if w.ndim == 1 else CURVATURE * w
    kept["m"] = 0.8 * kept.get("m", 0.0) + 0.2 * g
    kept["v"] = 0.95 * kept.get("v", 0.0) + 0.05 * g**2
    u = kept["m"] / (1 - 0.8**t) / (np.sqrt(kept["v"] / (1 - 0.95**t)) + 1e-6) + 0.1 * w
    ratio = np.linalg.norm(w) / np.linalg.norm(u) if is_matrix else 1.0
    return w - 0.3 * ratio * u


def by_hand_lion(w: Array, t: int, kept: dict[str, Array], is_matrix: bool) -> Array:
    g = CURVATURE[: len(w), 0] * w if w.ndim == 1 else CURVATURE * w
    m = kept.get("m", np.zeros_like(w))
    kept["m"] = 0.95 * m + 0.05 * g
    return w - 0.3 * (np.sign(0.8 * m + 0.2 * g) + 0.1 * w)


def by_hand_muon(w: Array, t: int, kept: dict[str, Array], is_matrix: bool) -> Array:
    """The quintic acts on singular values alone: through an SVD, without the iteration."""
    g = CURVATURE[: len(w), 0] * w if w.ndim == 1 else CURVATURE * w
    if not is_matrix:
        kept["m"] = 0.8 * kept.get("m", 0.0) + 0.2 * g
        kept["v"] = 0.95 * kept.get("v", 0.0) + 0.05 * g**2
        return w - 0.3 * (kept["m"] / (1 - 0.8**t) / (np.sqrt(kept["v"] / (1 - 0.95**t)) + 1e-8) + 0.1 * w)
    kept["m"] = 0.7 * kept.get("m", 0.0) + g
    left, values, right = np.linalg.svd(g + 0.7 * kept["m"], full_matrices=False)
    values = values / np.linalg.norm(values)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return w - 0.3 * (0.2 * math.sqrt(4) * left @ np.diag(values) @ right + 0.1 * w)


CASES = {
    "lars": (lambda p: LARS(p, lr=0.3, momentum=0.8, weight_decay=0.1, trust=0.02), by_hand_lars),
    "lamb": (lambda p: LAMB(p, lr=0.3, betas=(0.8, 0.95), weight_decay=0.1), by_hand_lamb),
    "lion": (lambda p: Lion(p, lr=0.3, betas=(0.8, 0.95), weight_decay=0.1), by_hand_lion),
    "muon": (lambda p: Muon(p, lr=0.3, momentum=0.7, betas=(0.8, 0.95), weight_decay=0.1), by_hand_muon),
}


@pytest.mark.parametrize("name", CASES)
def test_the_papers_update_on_a_quadratic(name: str) -> None:
    make, by_hand = CASES[name]
    start_at = np.random.default_rng(0).normal(size=(4, 3))
    w = nn.Parameter(torch.tensor(start_at))
    b = nn.Parameter(torch.tensor(start_at[:, 0]))
    optimizer = make([w, b])
    expected, kept = [start_at, start_at[:, 0]], ({}, {})
    for t in range(1, 8):
        optimizer.zero_grad()
        curvature = torch.tensor(CURVATURE)
        ((curvature * w**2).sum() / 2 + (curvature[:, 0] * b**2).sum() / 2).backward()
        optimizer.step()
        expected = [by_hand(x, t, kept[i], is_matrix=i == 0) for i, x in enumerate(expected)]
        for found, right in zip((w, b), expected, strict=True):
            assert np.abs(found.detach().numpy() - right).max() < 1e-12, (name, t)


def test_muon_is_torchs_where_torch_has_it() -> None:
    theirs = getattr(torch.optim, "Muon", None)
    if theirs is None:
        pytest.skip("torch.optim.Muon came with torch 2.9")
    ours, other = (nn.Parameter(torch.randn(6, 4, generator=torch.Generator().manual_seed(1))) for _ in range(2))
    pair = (Muon([ours], lr=0.1, adjust_lr="original"), theirs([other], lr=0.1, weight_decay=0.1))
    for _ in range(4):
        for parameter, optimizer in zip((ours, other), pair, strict=True):
            parameter.grad = parameter.detach() * 3 + 1
            optimizer.step()
    assert torch.allclose(ours, other, atol=2e-2), "torch iterates in bfloat16"


def test_a_zero_weight_moves_under_lars_and_lamb() -> None:
    for kind in (LARS, LAMB):
        w = nn.Parameter(torch.zeros(3, 3))
        w.grad = torch.ones(3, 3)
        kind([w], lr=0.1).step()
        assert torch.allclose(w, torch.full((3, 3), -0.1), atol=1e-5)


# --- groups


def grouped(network: nn.Module, cls: Any = torch.optim.SGD, **settings: Any) -> dict[str, dict[str, Any]]:
    """By parameter name: the group that the optimizer has it in."""
    given = {"_target_": "torch.optim.SGD", "decay_bias_and_norm": True, "lr": 0.1, "weight_decay": 0.5, **settings}
    node = Optimizer.model_validate(given)
    optimizer = cls(parameter_groups(network, group_options(network, node, 128, cls)), **node.arguments)
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    return {name: groups[id(p)] for name, p in network.named_parameters()}


def test_groups_by_name() -> None:
    network = nn.ModuleDict({"model": ResNetCIFAR(10, (3, 32, 32))})
    names = [name for name, _ in network.named_parameters()]
    head = next(name for name in reversed(names) if name.endswith("weight")).removesuffix(".weight")
    pattern = head.removeprefix("model.")
    found = grouped(network, groups=[
        {"match": pattern, "lr_scale": 10.0, "weight_decay": 0.0}, {"match": ["*.bias", pattern], "momentum": 0.3},
    ])  # fmt: skip
    assert (found[f"{head}.weight"]["lr"], found[f"{head}.bias"]["lr"], found[names[0]]["lr"]) == (1.0, 1.0, 0.1)
    assert (found[f"{head}.bias"]["weight_decay"], found[f"{head}.bias"]["momentum"]) == (0.0, 0.0), "the first match"
    assert {group["momentum"] for name, group in found.items() if name.endswith("bias") and head not in name} == {0.3}
    with pytest.raises(ValueError, match=r"optimizer.groups.0.match=classifer.\* matches no parameter"):
        grouped(network, groups=[{"match": "classifer.*"}])


def test_learning_rates_follow_the_batch_if_asked_to() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    found = grouped(
        network, groups=[{"match": "0.weight", "lr": 0.01}, {"match": "0", "lr_scale": 2.0}], lr_batch_size=32
    )
    assert [found[name]["lr"] for name in ("0.weight", "0.bias")] == [0.04, 0.8]
    assert grouped(network, groups=[{"match": "0.weight", "lr": 0.01}])["0.weight"]["lr"] == 0.01


def test_layer_decay_follows_the_models_blocks() -> None:
    network = ViT(10, (3, 16, 16), patch=8, width=8, depth=3, heads=2)
    depths = layers_above(network)
    assert depths["class_token"] == depths["positions"] == depths["patches.weight"] == 4
    assert [depths[f"blocks.{i}.norm1.weight"] for i in range(3)] == [3, 2, 1]
    assert depths["norm.weight"] == depths["classifier.weight"] == 0
    found = grouped(network, layer_decay=0.5, decay_bias_and_norm=False)
    assert found["class_token"]["lr"] == pytest.approx(0.1 * 0.5**4)
    assert (found["class_token"]["weight_decay"], found["patches.weight"]["weight_decay"]) == (0.0, 0.5)
    assert found["classifier.weight"]["lr"] == 0.1
    plain = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 2))
    assert list(layers_above(plain).values()) == [2, 2, 1, 1, 0, 0]


def test_layers_of_a_staged_network_are_in_order() -> None:
    depths = list(layers_above(ResNetCIFAR(10, (3, 32, 32))).values())
    assert depths == sorted(depths, reverse=True)
    assert set(depths) == set(range(11)), "stem, nine blocks, head"


def test_muon_leaves_head_and_tokens_to_adamw() -> None:
    network = ViT(10, (3, 16, 16), patch=8, width=8, depth=2, heads=2)
    found = grouped(network, Muon)
    by_adamw = {name for name, group in found.items() if not group["orthogonalize"]}
    assert {"class_token", "positions", "classifier.weight"} <= by_adamw
    assert "patches.weight" not in by_adamw
    assert "blocks.0.attention.qkv.weight" not in by_adamw


# --- clipping


def test_adaptive_clipping_bounds_each_unit() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 2)).double()
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = {name: parameter.grad.clone() for name, parameter in network.named_parameters()}  # pyright: ignore[reportOptionalMemberAccess]
    with torch.no_grad():
        network[0].weight[1] *= 1e4  # pyright: ignore[reportIndexIssue]
    clip_adaptively(network, 0.01)
    w, g, old = network.get_parameter("0.weight").detach(), network[0].weight.grad, before["0.weight"]
    assert isinstance(w, torch.Tensor)
    assert isinstance(g, torch.Tensor)
    for unit in range(3):
        most = 0.01 * max(1e-3, math.sqrt(float((w[unit] ** 2).sum())))
        norm = math.sqrt(float((old[unit] ** 2).sum()))
        assert torch.allclose(g[unit], old[unit] * min(1.0, most / norm), rtol=1e-12), unit
    assert torch.equal(g[1], old[1]), "small against its weights"
    assert torch.equal(network[2].weight.grad, before["2.weight"]), "the output layer stays"  # pyright: ignore[reportArgumentType]


# --- whole runs

EXACT = ["trainer.precision=64-true", "trainer.max_steps=8", "batch_size=48", "trainer.gradient_clip_val=0.02",
         "trainer.gradient_clip_algorithm=adaptive", "optimizer.layer_decay=0.7", "optimizer.lr=0.01",
         "optimizer.groups=[{match: '*.bias', lr_scale: 3.0, weight_decay: 0.0}]"]  # fmt: skip
TWO = "topology.devices_per_node=2"


@pytest.mark.parametrize("name", ["lamb", "muon"])
def test_a_resumed_run_is_the_whole_one(freeze: Freeze, tmp_path: Path, name: str) -> None:
    saving = ["callbacks.checkpoint.every_n_steps=4", "callbacks.checkpoint.keep_last=9"]
    whole = freeze("whole", *TINY, *EXACT, f"optimizer={name}", *saving)
    assert start(whole) == 0
    cut = cut_back(whole, tmp_path / "cut", 4)
    assert start(cut, "resume") == 0
    assert distance(weights(cut), weights(whole)) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("muon", "ddp"),
        ("lars", "butterfly"),
        ("lamb", "local_sgd"),
        pytest.param("lion", "fsdp", marks=pytest.mark.campaign),
        pytest.param("adam", "hybrid", marks=pytest.mark.campaign),
    ],
)
def test_two_workers_equal_one(freeze: Freeze, pools: Pools, name: str, strategy: str) -> None:
    options = [*TINY, *EXACT, f"optimizer={name}", "model.hidden=[16,12]"]
    if strategy in ("fsdp", "hybrid"):
        options.append("trainer.gradient_clip_algorithm=norm")
    options += ["trainer.max_steps=1"] if name == "lamb" else []
    sharding = ["strategy.min_parameters=100"] if strategy == "fsdp" else []
    one = freeze("one", *options)
    several = freeze("several", *options, f"strategy={strategy}", TWO, *sharding)
    assert start(one) == 0
    pools(2).run(several)
    if strategy != "local_sgd":  # whose workers step by themselves
        assert distance(weights(several), weights(one)) <= 1e-10


REFUSED = {
    "lars-fsdp": (["optimizer=lars", "strategy=fsdp", TWO], "optimizer", "LARS needs whole parameters"),
    "lamb-hybrid": (["optimizer=lamb", "strategy=hybrid", TWO], "optimizer", "strategy=hybrid divides"),
    "muon-spatial": (["optimizer=muon", "strategy=spatial", "model=local_net", TWO], "optimizer", "Muon needs whole"),
    "muon-asgd": (["optimizer=muon", "strategy=asgd", TWO], "optimizer", "servers hold parts"),
    "groups-asgd": (["optimizer.layer_decay=0.5", "strategy=asgd", TWO], "optimizer.layer_decay", "own options alone"),
    "agc-fsdp": (
        ["trainer.gradient_clip_val=0.01", "trainer.gradient_clip_algorithm=adaptive", "strategy=fsdp", TWO],
        "trainer.gradient_clip_algorithm", "whole rows",
    ),
    "option": (["optimizer.groups=[{match: a, momentun: 0.1}]"], "optimizer.groups.0.momentun", "mean momentum"),
    "rate": (["optimizer.groups=[{match: a, lr: 0}]"], "optimizer.groups.0.lr", "greater than 0"),
    "type": (["optimizer.groups=[{match: a, nesterov: 3}]"], "optimizer.groups.0.nesterov", "does not fit SGD's"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_before_the_start(freeze: Freeze, name: str) -> None:
    options, key, text = REFUSED[name]
    base = [] if "model=local_net" in options else TINY
    with pytest.raises(ConfigError) as caught:
        check_classes(load(freeze("run", *base, *options)))
    assert [(problem.key, text in problem.text) for problem in caught.value.problems] == [(key, True)]
