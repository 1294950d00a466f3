"""Keys and initial weights of the plain convolutional networks, as they were before the networks shared ConvNet."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from leyden.models.alexnet import AlexNet
from leyden.models.alexnet_owt import AlexNetOWT
from leyden.models.convnet_parts import ConvNet
from leyden.models.easgd import CIFAR7, ImageNet11
from leyden.models.lenet5 import LeNet5
from leyden.models.vgg import VGG
from leyden.models.zfnet import ZFNet

HEAD_3 = ("classifier.1", "classifier.4", "classifier.7")
HEAD_2 = ("classifier.1", "classifier.4")
BEFORE: dict[type[ConvNet], tuple[int, dict[str, Any], Sequence[str], tuple[float, ...]]] = {
    # pixels a side, arguments, layers with parameters; of the first weight: its first value and its norm, of the last
    # weight: its first and last value. Taken from commit 5c93bb5 with torch 2.13.0 and torch.manual_seed(5).
    AlexNet: (
        52, {"hidden": (8, 8)}, ("features.1", "features.5", "features.9", "features.11", "features.13", *HEAD_3),
        (0.000404550432, 1.8759712, 0.00069398596, 0.0121782636),
    ),
    AlexNetOWT: (
        52, {"hidden": (8, 8)}, ("features.1", "features.5", "features.9", "features.11", "features.13", *HEAD_3),
        (0.0152236484, 1.54239702, -0.00282437378, -0.0090412898),
    ),
    ZFNet: (
        63, {"hidden": (8, 8)}, ("features.0", "features.4", "features.8", "features.10", "features.12", *HEAD_3),
        (0.0188838355, 1.19582367, 0.00663082581, -0.00920880027),
    ),
    CIFAR7: (
        28, {"hidden": (8,)}, ("features.0", "features.3", "features.6", *HEAD_2),
        (0.022935573, 11.346839, 0.00758854207, -0.0516800433),
    ),
    ImageNet11: (
        101, {"hidden": (8, 8)}, ("features.0", "features.3", "features.6", "features.8", "features.10", *HEAD_3),
        (-0.0998967811, 13.9529467, -0.563841164, 0.79368335),
    ),
    LeNet5: (
        32, {}, ("features.0", "features.3", "classifier.1", "classifier.3", "classifier.5"),
        (0.214599788, 3.57570505, 0.250640124, 0.0695500001),
    ),
    VGG: (
        16, {"stages": ((8,), (16,)), "hidden": (8,)}, ("features.0", "features.3", *HEAD_2),
        (-0.0559297353, 3.82544351, -0.214201674, -0.49106741),
    ),
}  # fmt: skip


@pytest.mark.parametrize("network", BEFORE, ids=lambda network: network.__name__)
def test_keys_and_initial_weights_are_those_of_before(network: type[ConvNet]) -> None:
    side, arguments, layers, expected = BEFORE[network]
    torch.manual_seed(5)
    build: Any = network
    weights = build(classes=10, image_shape=(3, side, side), **arguments).state_dict()
    assert list(weights) == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    first, last = weights[f"{layers[0]}.weight"], weights[f"{layers[-1]}.weight"]
    found = (first.flatten()[0], first.norm(), last.flatten()[0], last.flatten()[-1])
    assert [value.item() for value in found] == pytest.approx(expected, rel=1e-6)
