"""Models: sizes, shapes, and that what is published about them holds."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import cross_entropy, pad

from leyden.datasets.digits import Digits
from leyden.models.airbench import Airbench
from leyden.models.lenet5 import LeNet5
from leyden.models.mlp import MLP
from leyden.models.resnet_cifar import ResNetCIFAR


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_lenet5_has_the_size_of_the_paper() -> None:
    assert parameters(LeNet5(10, (1, 32, 32))) == 61_706


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 32, 32), (1, 28, 28), (3, 20, 45), (2, 16, 16)])
def test_lenet5_takes_other_shapes(shape: tuple[int, int, int]) -> None:
    assert LeNet5(7, shape)(torch.randn(2, *shape)).shape == (2, 7)


def test_lenet5_refuses_small_images() -> None:
    with pytest.raises(ValueError, match=r"at least 16 x 16 pixels, these have 32 x 15"):
        LeNet5(10, (1, 32, 15))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.campaign)])
def test_lenet5_learns_digits(seed: int) -> None:
    data, test = Digits("train"), Digits("test")

    def scaled(images: torch.Tensor) -> torch.Tensor:
        return (images.float() / 255 - data.mean[0]) / data.std[0]

    torch.manual_seed(seed)
    model = LeNet5(10, (1, 32, 32))
    images, labels = scaled(data.images), torch.tensor(data.labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(6):
        for part in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
    with torch.no_grad():
        right = model(scaled(test.images)).argmax(1) == torch.tensor(test.labels)
    assert right.float().mean() > 0.93


def test_mlp_layers() -> None:
    model = MLP(10, (1, 8, 8), hidden=[32, 16])
    assert parameters(model) == 64 * 32 + 32 + 32 * 16 + 16 + 16 * 10 + 10
    assert model(torch.randn(3, 1, 8, 8)).shape == (3, 10)
    linear = MLP(4, (3, 2, 2), hidden=[])
    assert parameters(linear) == 12 * 4 + 4
    x = torch.randn(5, 3, 2, 2)
    assert torch.allclose(linear(x) + linear(-x), torch.zeros(5, 4), atol=1e-6)  # linear, and biases start at zero


def test_mlp_drops_in_training_only() -> None:
    model, x = MLP(10, (1, 8, 8), dropout=0.5), torch.randn(3, 1, 8, 8)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
    with pytest.raises(ValueError, match="dropout=1"):
        MLP(10, (1, 8, 8), dropout=1.0)
    with pytest.raises(ValueError, match=r"hidden=\[8, 0\]"):
        MLP(10, (1, 8, 8), hidden=[8, 0])


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(("depth", "count"), [(20, 269_722), (32, 464_154), (56, 853_018)])
def test_resnet_has_the_size_of_the_paper(depth: int, count: int, norm: str) -> None:
    model = ResNetCIFAR(10, (3, 32, 32), depth=depth, norm=norm)  # pyright: ignore[reportArgumentType]
    assert parameters(model) == count  # table 6: 0.27, 0.46 and 0.85 million
    weights = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(weights) == depth
    assert any(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == (norm == "batch")


def test_resnet_shapes() -> None:
    model = ResNetCIFAR(100, (3, 32, 32))
    x = torch.randn(2, 3, 32, 32)
    assert model.blocks(model.stem(x)).shape == (2, 64, 8, 8)
    assert model(x).shape == (2, 100)
    assert ResNetCIFAR(10, (1, 28, 30))(torch.randn(2, 1, 28, 30)).shape == (2, 10)


def test_resnet_shortcuts_are_option_a() -> None:
    """With the last norm's scale at zero a block passes its input on: subsampled, new maps zero."""
    model = ResNetCIFAR(10, (3, 32, 32)).eval()
    for block in model.blocks:
        nn.init.zeros_(block.get_submodule("norm2").get_parameter("weight"))
    x = torch.randn(2, 3, 32, 32)
    stem = model.stem(x)  # not negative, after its ReLU
    expected = pad(stem[:, :, ::4, ::4], (0, 0, 0, 0, 24, 24))
    assert torch.equal(model.blocks(stem), expected)


def test_resnet_with_groups_looks_at_one_sample_only() -> None:
    x = torch.randn(4, 3, 32, 32)
    for norm, alone in (("group", True), ("batch", False)):
        model = ResNetCIFAR(10, (3, 32, 32), depth=8, norm=norm)  # pyright: ignore[reportArgumentType]
        assert torch.allclose(model(x)[:1], model(x[:1]), atol=1e-4) == alone


def test_resnet_starts_with_hes_weights() -> None:
    torch.manual_seed(0)
    for module in ResNetCIFAR(10, (3, 32, 32), depth=56).modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 10_000:
            assert module.weight.std().item() == pytest.approx(math.sqrt(2 / (module.in_channels * 9)), rel=0.05)


def test_resnet_refuses() -> None:
    for depth in (18, 21, 2, 0):
        with pytest.raises(ValueError, match="6n"):
            ResNetCIFAR(10, (3, 32, 32), depth=depth)
    with pytest.raises(ValueError, match="'layer'"):
        ResNetCIFAR(10, (3, 32, 32), norm="layer")  # pyright: ignore[reportArgumentType]


def test_initialization_follows_the_seed() -> None:
    for build in (LeNet5, MLP, ResNetCIFAR):
        torch.manual_seed(3)
        one = build(10, (1, 32, 32))
        torch.manual_seed(3)
        two = build(10, (1, 32, 32))
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_airbench_has_the_size_of_the_paper_and_begins_as_the_identity() -> None:
    network = Airbench(10, (3, 32, 32))
    assert parameters(network) == 1_972_792
    block: Any = network.blocks[0]
    maps = torch.randn(2, 24, 8, 8)
    assert torch.equal(block.conv1(maps)[:, :24], maps)
    frozen = {name.split(".")[-2] for name, p in network.named_parameters() if not p.requires_grad}
    assert frozen == {"whitening", "norm1", "norm2"}


def test_airbench_whitens_patches() -> None:
    """Of the images themselves: responses of unit variance, uncorrelated, the largest component first."""
    images = torch.randn(64, 3, 12, 12, generator=torch.Generator().manual_seed(0)).cumsum(dim=-1)
    network = Airbench(10, (3, 12, 12))
    filters = network.weights_from_images(images)["whitening.weight"]
    assert torch.equal(filters[12:], -filters[:12])
    responses = F.conv2d(images, filters[:12]).transpose(0, 1).flatten(1)
    covariance = responses @ responses.T / responses.shape[1]
    torch.testing.assert_close(covariance, torch.eye(12), rtol=0, atol=5e-3)
    assert (filters[:12].flatten(1).norm(dim=1).diff() > 0).all(), "a smaller variance needs a larger filter"
    flat = filters[:12].flatten(1)
    assert (flat.gather(1, flat.abs().argmax(dim=1, keepdim=True)) > 0).all()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"widths": (64, 256)}, "three numbers"), ({"widths": (64, 32, 256)}, "no smaller than"),
     ({"widths": (16, 256, 256)}, "24 after the whitening")],
)  # fmt: skip
def test_airbench_refuses_widths(arguments: dict[str, tuple[int, ...]], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Airbench(10, (3, 32, 32), **arguments)
