"""Networks of ImageNet's size: counts, geometry, first weights as published. Big ones are on the meta device only."""

import math
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from folders import CONF
from torch import nn
from torch.nn.functional import cross_entropy, max_pool2d, relu

from leyden.models.alexnet import AlexNet
from leyden.models.alexnet_owt import AlexNetOWT
from leyden.models.drop_path import DropPath
from leyden.models.easgd import CIFAR7, ImageNet11
from leyden.models.resnet import ResNet
from leyden.models.timm_model import TimmModel
from leyden.models.vgg import VGG
from leyden.models.vit import ViT
from leyden.models.zfnet import ZFNet
from leyden.trainer.config.schema import Model
from leyden.trainer.config.targets import build
from leyden.trainer.core.keyed.dropout import SampleKeys
from leyden.trainer.core.keyed.modules import with_keyed_layers

MODELS = CONF / "model"
SPLITTABLE = sorted(path.stem for path in MODELS.glob("*.yaml") if "sharded:" in path.read_text())
PUBLISHED = {  # pixels a side, classes, parameters
    "alexnet": (224, 1000, 60_965_224),
    "alexnet_owt": (224, 1000, 61_100_840),
    "zfnet": (224, 1000, 62_357_608),
    "vgg16": (224, 1000, 138_357_544),
    "deep_image": (224, 1000, 212_761_384),
    "vgg_small": (32, 10, 879_914),
    "easgd_cifar7": (28, 10, 351_946),
    "easgd_imagenet11": (221, 1000, 61_128_808),
    "resnet18": (224, 1000, 11_689_512),
    "resnet34": (224, 1000, 21_797_672),
    "resnet50": (224, 1000, 25_557_032),
    "resnet101": (224, 1000, 44_549_160),
    "vit_small": (224, 1000, 22_050_664),
    "vit_base": (224, 1000, 86_567_656),
}


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def described(name: str, classes: int, image_shape: Sequence[int], **overrides: Any) -> nn.Module:
    """The network of a YAML that ships, on the meta device."""
    values = {**yaml.safe_load((MODELS / f"{name}.yaml").read_text()), **overrides}
    with torch.device("meta"):
        return build(Model.model_validate(values), classes=classes, image_shape=image_shape)


def sides(layers: nn.Module, side: int, channels: int = 3) -> list[int]:
    """Pixels a side after each of the layers that changes them, padding aside."""
    assert isinstance(layers, nn.Sequential)
    found: list[int] = []
    maps = torch.empty(1, channels, side, side, device="meta")
    for layer in layers:
        maps = layer(maps)
        assert maps.shape[2] == maps.shape[3]
        if not isinstance(layer, nn.ZeroPad2d) and maps.shape[3] != (found or [side])[-1]:
            found.append(maps.shape[3])
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_size_is_the_published_one(name: str) -> None:
    side, classes, count = PUBLISHED[name]
    model = described(name, classes, (3, side, side))
    assert parameters(model) == count
    assert f"{count:,}" in (MODELS / f"{name}.yaml").read_text().splitlines()[0]
    assert model(torch.empty(2, 3, side, side, device="meta")).shape == (2, classes)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("alexnet", [55, 27, 13, 6]),
        ("alexnet_owt", [55, 27, 13, 6]),
        ("zfnet", [110, 55, 26, 13, 6]),
        ("vgg16", [112, 56, 28, 14, 7]),
        ("deep_image", [112, 56, 28, 14, 7]),
        ("vgg_small", [16, 8, 4]),
        ("easgd_cifar7", [24, 12, 8, 4, 2]),
        ("easgd_imagenet11", [108, 36, 32, 16, 14, 13, 12, 6]),
    ],
)
def test_maps_have_the_published_sizes(name: str, expected: list[int]) -> None:
    side, classes, _ = PUBLISHED[name]
    assert sides(described(name, classes, (3, side, side)).get_submodule("features"), side) == expected


@pytest.mark.parametrize(
    ("name", "convolutions", "head"),
    [("alexnet_owt", 2_469_696, 58_631_144), ("deep_image", 14_714_688, 198_046_696)],
)
def test_most_parameters_are_fully_connected(name: str, convolutions: int, head: int) -> None:
    model = described(name, 1000, (3, 224, 224))
    assert parameters(model.get_submodule("features")) == convolutions
    assert parameters(model.get_submodule("classifier")) == head


def test_first_logits_of_vgg_are_as_small_as_its_head_is_initialized() -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)
    nets = {std: VGG(1000, (3, 32, 32), head_std=std) for std in (0.01, None)}
    losses = {std: cross_entropy(net(images), labels).item() for std, net in nets.items()}
    assert losses[0.01] == pytest.approx(math.log(1000), rel=0.05)
    assert losses[None] > 1.2 * math.log(1000), "He's initial weights are for layers that a ReLU follows"
    with pytest.raises(ValueError, match="head_std=0 must be greater than 0"):
        VGG(10, (3, 32, 32), head_std=0)


@pytest.mark.parametrize("name", ["vgg16", "deep_image"])
def test_networks_of_vgg_at_true_scale_begin_with_small_logits(name: str) -> None:
    assert yaml.safe_load((MODELS / f"{name}.yaml").read_text())["head_std"] == 0.01


# what strategy=hybrid relies on


def test_networks_with_a_big_head_say_so() -> None:
    heads = {"alexnet", "alexnet_owt", "zfnet", "vgg16", "deep_image", "vgg_small", "easgd_cifar7", "easgd_imagenet11"}
    assert heads | {"lenet5", "mlp", "conv_local"} == set(SPLITTABLE)


@pytest.mark.parametrize("name", SPLITTABLE)
def test_what_can_be_split_is_fully_connected_and_comes_last(name: str) -> None:
    side, classes, _ = PUBLISHED.get(name, (32, 10, 0))
    model = described(name, classes, (3, side, side))
    (sharded,) = yaml.safe_load((MODELS / f"{name}.yaml").read_text())["parallel"]["sharded"]
    head = model.get_submodule(sharded)
    assert isinstance(head, nn.Sequential)
    assert {type(layer) for layer in head} <= {nn.Flatten, nn.Linear, nn.ReLU, nn.Dropout}
    assert len({id(layer) for layer in head}) == len(head)
    outputs: list[Any] = []
    head.register_forward_hook(lambda module, arguments, output: outputs.append(output))
    logits = model(torch.empty(2, 3, side, side, device="meta"))
    assert len(outputs) == 1
    assert logits is outputs[0]


@pytest.mark.parametrize("build_model", [AlexNet, AlexNetOWT, ZFNet, VGG, CIFAR7, ImageNet11])
def test_heads_drop_hidden_units(build_model: Any) -> None:
    with torch.device("meta"):
        dropping, plain = (build_model(10, (3, 224, 224), hidden=[8, 6], dropout=p).classifier for p in (0.5, 0.0))
    linear, relu_, dropout = nn.Linear, nn.ReLU, nn.Dropout
    assert [type(m) for m in dropping] == [nn.Flatten, linear, relu_, dropout, linear, relu_, dropout, linear]
    assert [type(m) for m in plain] == [nn.Flatten, linear, relu_, linear, relu_, linear]
    assert [m.out_features for m in dropping if isinstance(m, linear)] == [8, 6, 10]
    with pytest.raises(ValueError, match="dropout=1"):
        build_model(10, (3, 224, 224), hidden=[8], dropout=1.0)
    with pytest.raises(ValueError, match=r"hidden=\[8, 0\]"):
        build_model(10, (3, 224, 224), hidden=[8, 0])


# sizes of images


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("build_model", "smallest"),
    [(AlexNet, 52), (AlexNetOWT, 52), (ZFNet, 63), (CIFAR7, 24), (ImageNet11, 101), (VGG, 32)],
)
def test_the_head_fits_images_of_every_size(build_model: Any, smallest: int) -> None:
    with torch.device("meta"):
        for side in (*range(smallest, smallest + 25), 224, 227, 256):
            model = build_model(7, (2, side, smallest), hidden=[4])
            assert model(torch.empty(3, 2, side, smallest)).shape == (3, 7)
        for side in (*range(smallest, smallest + 25, 4), 227):
            assert build_model(7, (2, smallest, side), hidden=[4])(torch.empty(3, 2, smallest, side)).shape == (3, 7)
        with pytest.raises(
            ValueError, match=rf"{smallest} x {smallest} pixels, these have 256 x {smallest - 1}; enlarge"
        ):
            build_model(7, (3, 256, smallest - 1))


def test_no_layer_of_alexnet_leaves_pixels_out() -> None:
    """The last pixel of the smallest and of the published image reaches the head."""
    for build_model, side in ((AlexNet, 52), (AlexNetOWT, 52), (AlexNetOWT, 224)):
        torch.manual_seed(0)
        features = build_model(2, (1, side, side), hidden=[2]).features.double()
        images = torch.rand(1, 1, side, side, dtype=torch.float64, requires_grad=True)
        features(images).sum().backward()
        assert images.grad is not None
        assert images.grad[0, 0, -1].any()
        assert images.grad[0, 0, :, -1].any()


# the AlexNets and ZFNet


def first_weights(model: nn.Module) -> list[tuple[float, set[float]]]:
    """Standard deviation of the weights and values of the biases, layer by layer."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert all(layer.bias is not None for layer in layers)
    return [(layer.weight.std().item(), set(layer.bias.tolist())) for layer in layers if layer.bias is not None]


@pytest.mark.parametrize(
    ("build_model", "deviations", "biases"),
    [
        (AlexNet, [0.01] * 8, [0, 1, 0, 1, 1, 1, 1, 0]),
        (AlexNetOWT, [0.01, 0.01, 0.03, 0.03, 0.03, 0.01, 0.01, 0.01], [0, 1, 0, 1, 1, 1, 1, 0]),
        (ZFNet, [0.01] * 8, [0] * 8),
    ],
)
def test_first_weights_are_the_published_ones(build_model: Any, deviations: list[float], biases: list[int]) -> None:
    torch.manual_seed(0)
    found = first_weights(build_model(50, (3, 64, 64), hidden=[150, 120]))
    assert [deviation for deviation, _ in found] == pytest.approx(deviations, rel=0.05)
    assert [values for _, values in found] == [{float(bias)} for bias in biases]


def test_alexnet_has_groups_where_its_two_towers_were_apart() -> None:
    with torch.device("meta"):
        layers = [layer for layer in AlexNet(10, (3, 224, 224)).features if isinstance(layer, nn.Conv2d)]
    assert [layer.groups for layer in layers] == [1, 2, 1, 2, 2]
    assert [layer.out_channels for layer in layers] == [96, 256, 384, 384, 256]


def response_norm(maps: torch.Tensor, alpha: float) -> torch.Tensor:
    """Section 3.3 of Krizhevsky et al. 2012, map by map: a / (k + alpha * sum of squares of n neighbours) ** beta."""
    found = torch.empty_like(maps)
    for index in range(maps.shape[1]):
        neighbours = maps[:, max(0, index - 2) : index + 3]
        found[:, index] = maps[:, index] / (2 + alpha * neighbours.square().sum(1)) ** 0.75
    return found


def test_alexnet_normalizes_what_its_relu_gives() -> None:
    features = AlexNet(2, (3, 64, 64), hidden=[2]).features
    maps = 40 * torch.randn(2, 96, 13, 13)
    expected = max_pool2d(response_norm(relu(maps), 1e-4), 3, 2)
    assert torch.allclose(features[2:5](maps), expected, rtol=1e-4)


def test_one_tower_normalizes_before_its_first_relu() -> None:
    features = AlexNetOWT(2, (3, 64, 64), hidden=[2]).features
    maps = 40 * torch.randn(2, 64, 13, 13)
    expected = relu(max_pool2d(response_norm(maps, 1e-4 / 5), 3, 2))
    assert torch.allclose(features[2:5](maps), expected, rtol=1e-4)
    assert [type(layer) for layer in list(features)[6:9]] == [nn.ReLU, nn.LocalResponseNorm, nn.MaxPool2d]


def test_zfnet_pools_before_it_normalizes() -> None:
    with torch.device("meta"):
        features = ZFNet(2, (3, 64, 64), hidden=[2]).features
    order = [nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.LocalResponseNorm]
    assert [type(layer) for layer in list(features)[:8]] == order * 2


def test_response_norm_takes_channels_last() -> None:
    model = AlexNet(2, (3, 52, 52), hidden=[4]).eval()
    images = torch.randn(2, 3, 52, 52)
    expected = model(images)
    last = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    assert torch.allclose(last(images.contiguous(memory_format=torch.channels_last)), expected, atol=1e-5)


# VGG


def test_vgg_has_the_stages_that_are_asked_for() -> None:
    model = VGG(5, (1, 20, 9), stages=[[3, 4], [6]], hidden=[7], dropout=0.0)
    convolutions = [layer for layer in model.features if isinstance(layer, nn.Conv2d)]
    assert [(layer.in_channels, layer.out_channels) for layer in convolutions] == [(1, 3), (3, 4), (4, 6)]
    assert model.features(torch.randn(2, 1, 20, 9)).shape == (2, 6, 5, 2)
    assert model(torch.randn(2, 1, 20, 9)).shape == (2, 5)
    for stages in ([], [[8], []], [[8, 0]]):
        with pytest.raises(ValueError, match="every stage needs a convolution"):
            VGG(5, (1, 32, 32), stages=stages)


@pytest.mark.parametrize("build_model", [VGG, CIFAR7])
def test_nets_without_published_weights_start_with_hes(build_model: Any) -> None:
    torch.manual_seed(0)
    model = build_model(10, (3, 32, 32), **({"stages": [[64, 64], [64]]} if build_model is VGG else {}), hidden=[64])
    weights = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear) and m.weight.numel() > 10_000]
    assert weights
    for layer in weights:
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / layer.weight[0].numel()), rel=0.05)
    assert all(not layer.bias.any() for layer in weights if layer.bias is not None)


# residual networks


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(
    ("depth", "count"),
    [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808)],
)
def test_resnet_has_the_size_and_the_depth(depth: int, count: int, norm: str) -> None:
    with torch.device("meta"):
        model = ResNet(1000, (3, 224, 224), depth=depth, norm=norm)  # pyright: ignore[reportArgumentType]
    assert parameters(model) == count
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    assert len([name for name in layers if "shortcut" not in name]) == depth
    assert len([name for name in layers if "shortcut" in name]) == (3 if depth < 50 else 4)
    assert any(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == (norm == "batch")


@pytest.mark.parametrize(("depth", "expansion"), [(18, 1), (50, 4)])
def test_resnet_stages(depth: int, expansion: int) -> None:
    with torch.device("meta"):
        model = ResNet(10, (1, 224, 192), depth=depth)  # pyright: ignore[reportArgumentType]
        maps = model.stem(torch.empty(2, 1, 224, 192))
        assert maps.shape == (2, 64, 56, 48)
        for index, stage in enumerate(model.stages):
            maps = stage(maps)
            assert maps.shape == (2, expansion * 64 * 2**index, 56 >> index, 48 >> index)


def test_resnet_bottlenecks_stride_in_the_middle() -> None:
    with torch.device("meta"):
        model = ResNet(10, (3, 224, 224), depth=50)
    strided = [m.kernel_size for m in model.stages.modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)]
    assert sorted(strided) == [(1, 1)] * 3 + [(3, 3)] * 3  # three shortcuts, three blocks


def test_resnet_with_groups_looks_at_one_sample_only() -> None:
    images = torch.randn(3, 3, 32, 32)
    for norm, alone in (("group", True), ("batch", False)):
        model = ResNet(10, (3, 32, 32), depth=18, norm=norm)  # pyright: ignore[reportArgumentType]
        assert torch.allclose(model(images)[:1], model(images[:2])[:1], atol=1e-4) == alone


def test_resnet_refuses() -> None:
    with pytest.raises(ValueError, match="depth=20 is none of 18, 34, 50, 101, 152"):
        ResNet(10, (3, 32, 32), depth=20)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="'layer'"):
        ResNet(10, (3, 32, 32), norm="layer")  # pyright: ignore[reportArgumentType]


# vision transformer


def small_vit(**arguments: Any) -> ViT:
    return ViT(10, (3, 16, 24), **{"patch": 8, "width": 32, "depth": 2, "heads": 4, **arguments})


def test_vit_attends_as_multihead_attention_does() -> None:
    torch.manual_seed(0)
    attention = small_vit().blocks[0].get_submodule("attention").double()
    reference = nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
    weights = attention.state_dict()
    reference.load_state_dict(
        {
            "in_proj_weight": weights["qkv.weight"].normal_(),
            "in_proj_bias": weights["qkv.bias"].normal_(),
            "out_proj.weight": weights["proj.weight"],
            "out_proj.bias": weights["proj.bias"],
        }
    )
    tokens = torch.randn(2, 7, 32, dtype=torch.float64)
    assert torch.allclose(attention(tokens), reference(tokens, tokens, tokens)[0])


def test_vit_knows_where_its_patches_are() -> None:
    torch.manual_seed(0)
    model, images = small_vit(), torch.randn(2, 3, 16, 24)
    assert model.positions.shape == (1, 1 + 2 * 3, 32)
    nn.init.normal_(model.classifier.weight)
    swapped = torch.cat([images[..., 8:16], images[..., :8], images[..., 16:]], dim=3)
    assert not torch.allclose(model(images), model(swapped), atol=1e-5)
    nn.init.zeros_(model.positions)
    assert torch.allclose(model(images), model(swapped), atol=1e-5)


def test_vit_starts_as_the_authors_code_does() -> None:
    torch.manual_seed(0)
    model = small_vit(width=128)
    block = model.blocks[0]
    assert not model(torch.randn(2, 3, 16, 24)).any()  # all classes alike
    assert model.positions.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.patches.weight.std().item() == pytest.approx(math.sqrt(1 / (3 * 8 * 8)), rel=0.05)
    for part in (*block.get_parameter("attention.qkv.weight").chunk(3), block.get_parameter("attention.proj.weight")):
        assert part.abs().max().item() == pytest.approx(math.sqrt(6 / 256), rel=0.01)
    assert block.get_parameter("mlp.0.weight").abs().max().item() == pytest.approx(math.sqrt(6 / (5 * 128)), rel=0.01)


def test_vit_drops_in_training_only() -> None:
    model, images = small_vit(dropout=0.5), torch.randn(2, 3, 16, 24)
    nn.init.normal_(model.classifier.weight)
    assert not torch.equal(model(images), model(images))
    calls: list[nn.Module] = []
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    for module in dropouts:
        module.register_forward_hook(lambda module, arguments, output: calls.append(module))
    model.eval()
    assert torch.equal(model(images), model(images))
    assert len(dropouts) == 1 + 2 * 3
    assert len(calls) == 2 * len(dropouts)  # each once in a forward


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("resnet18", [0.3 * block / 7 for block in range(1, 8)]),
        ("vit_small", [0.3 * block / 11 for block in range(1, 12) for _ in range(2)]),  # attention and perceptron
    ],
)
def test_blocks_are_dropped_the_more_often_the_later_they_come(name: str, rates: list[float]) -> None:
    dropping = described(name, 10, (3, 64, 64), drop_path=0.3)
    layers = [layer for layer in dropping.modules() if isinstance(layer, DropPath)]
    assert [layer.drop_prob for layer in layers] == pytest.approx(rates)
    assert list(dropping.state_dict()) == list(described(name, 10, (3, 64, 64)).state_dict())
    with pytest.raises(ValueError, match=r"drop_path=1.0 must be at least 0 and less than 1"):
        described(name, 10, (3, 64, 64), drop_path=1.0)


def test_a_network_whose_blocks_are_dropped_is_drawn_by_sample() -> None:
    torch.manual_seed(0)
    plain = ViT(10, (1, 8, 8), patch=4, width=8, depth=2, heads=2)
    dropping = ViT(10, (1, 8, 8), patch=4, width=8, depth=2, heads=2, drop_path=0.5)
    dropping.load_state_dict(plain.state_dict())
    nn.init.normal_(dropping.classifier.weight)
    plain.load_state_dict(dropping.state_dict())
    images = torch.randn(40, 1, 8, 8)
    assert torch.equal(dropping.eval()(images), plain(images))
    sample_keys = SampleKeys()
    with_keyed_layers(dropping.train(), sample_keys)
    sample_keys.set(torch.arange(40))
    whole = dropping(images)
    changed = (whole - plain(images)).abs().amax(1) > 1e-6
    assert changed.all(), "what is kept counts twice"
    sample_keys.set(torch.arange(40)[10:20])
    assert torch.allclose(dropping(images[10:20]), whole[10:20], atol=1e-6)
    without = plain.classifier(plain.norm(plain.blocks[0](plain.dropout(_tokens(plain, images)))[:, 0]))
    dropped = ((whole - without).abs().amax(1) < 1e-5).double().mean()
    assert 0.05 < dropped < 0.5, "both halves of the last block, in a quarter of the samples"


def _tokens(vit: ViT, images: torch.Tensor) -> torch.Tensor:
    patches = vit.patches(images).flatten(2).transpose(1, 2)
    return torch.cat([vit.class_token.expand(len(patches), -1, -1), patches], dim=1) + vit.positions


def test_vit_refuses() -> None:
    with pytest.raises(ValueError, match="patch=16 does not divide images of 224 x 225 pixels; resize"):
        ViT(10, (3, 224, 225))
    with pytest.raises(ValueError, match="width=32 is not a multiple of heads=5"):
        small_vit(heads=5)
    with pytest.raises(ValueError, match="dropout=1"):
        small_vit(dropout=1.0)


# timm


def test_timm_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def create_model(name: str, **arguments: Any) -> nn.Module:
        asked.append((name, arguments))
        return nn.Sequential(nn.Flatten(), nn.Linear(2 * 4 * 4, arguments["num_classes"]))

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    values = yaml.safe_load((MODELS / "timm.yaml").read_text())
    node = Model.model_validate({**values, "name": "resnet50", "drop_rate": 0.1})
    model = build(node, classes=5, image_shape=(2, 4, 4))
    assert isinstance(model, TimmModel)
    assert asked == [("resnet50", {"pretrained": False, "num_classes": 5, "in_chans": 2, "drop_rate": 0.1})]
    assert model(torch.randn(3, 2, 4, 4)).shape == (3, 5)


def test_timm_that_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=r"resnet50 of timm's collection needs timm .*pip install 'leyden\[timm\]'"):
        TimmModel(10, (3, 224, 224), "resnet50")


def test_first_weights_follow_the_seed() -> None:
    for make in (
        lambda: AlexNet(3, (1, 52, 52), hidden=[4]),
        lambda: CIFAR7(3, (1, 28, 28)),
        lambda: ResNet(3, (1, 32, 32), depth=18),
        small_vit,
    ):
        torch.manual_seed(3)
        one = make()
        torch.manual_seed(3)
        two = make()
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
