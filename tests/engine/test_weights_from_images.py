"""Networks that take initial weights from the training images: airbench's whitening."""

import pytest
import torch
from runs import HERE, Freeze, weights

from leyden.datasets.digits import Digits
from leyden.models.airbench import Airbench
from leyden.trainer.base.errors import CannotStart
from leyden.trainer.config.schema import load
from leyden.trainer.data.datamodule import ImageData
from leyden.trainer.entrypoints.start import start

SMALL = [
    "model=airbench",
    "model.widths=[8,8,8]",
    "dataset.image_size=10",
    "dataset.val_fraction=0",
    "batch_size=256",
    "trainer.max_epochs=1",
]
WHITENING = "model.whitening.weight"


def by_hand() -> torch.Tensor:
    data = Digits("train", image_size=10)
    images = torch.stack([data[index][0] for index in range(len(data))]).float().div(255)
    network = Airbench(10, (1, 10, 10), widths=(8, 8, 8))
    return network.weights_from_images((images - data.mean[0]) / data.std[0])["whitening.weight"]


def test_the_whitening_is_that_of_the_training_images_for_good(
    freeze: Freeze, capsys: pytest.CaptureFixture[str]
) -> None:
    first = freeze("first", *SMALL)
    assert start(first) == 0
    assert "training images gave model.whitening.weight" in capsys.readouterr().out
    trained = weights(first)
    torch.testing.assert_close(trained[WHITENING], by_hand())
    assert not torch.equal(trained["model.whitening.bias"], torch.zeros(8))
    assert torch.equal(trained["model.blocks.0.norm1.weight"], torch.ones(8))
    second = freeze("second", *SMALL, "dataset.val_fraction=0.5", f"model.pretrained={first}")
    assert start(second) == 0
    assert "training images gave" not in capsys.readouterr().out
    assert torch.equal(weights(second)[WHITENING], trained[WHITENING])


def test_they_are_computed_where_the_images_are() -> None:
    """With `dataset.cache=device`. On the device named meta nothing is computed, but two devices do not mix."""
    network = Airbench(10, (1, 10, 10), widths=(8, 8, 8))
    assert network.weights_from_images(torch.empty(3, 1, 10, 10, device="meta"))["whitening.weight"].is_meta


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [["strategy=fsdp"], pytest.param(["strategy=easgd", "strategy.form=server"], marks=pytest.mark.campaign)],
)
def test_two_workers_have_the_same(freeze: Freeze, strategy: list[str]) -> None:
    run_dir = freeze("run", *SMALL, *strategy, "topology.devices_per_node=2")
    assert start(run_dir) == 0
    torch.testing.assert_close(weights(run_dir)[WHITENING], by_hand())


def test_a_data_module_gives_no_images(freeze: Freeze) -> None:
    data = ["~dataset", "+dataset._target_=tutorial_modules.TutorialData", HERE]
    model = [*SMALL[:2], "+model.classes=10", "+model.image_shape=[1,10,10]", "+task.classes=10"]
    run_dir = freeze("run", *data, *model)
    with pytest.raises(CannotStart, match="only Leyden's datasets give them without augmentation"):
        start(run_dir)


def test_of_large_images_there_are_fewer() -> None:
    network = Airbench(10, (3, 224, 224))
    images = torch.randn(2, 3, 224, 224)
    whole = network.weights_from_images(images.repeat(40, 1, 1, 1))["whitening.weight"]
    torch.testing.assert_close(whole, network.weights_from_images(images)["whitening.weight"])


@pytest.mark.parametrize(
    ("most", "most_values", "count"), [(50, 10**9, 50), (50, 1000, 10), (50, 1, 1), (10**6, 10**9, 1437)]
)
def test_plain_images_are_limited(freeze: Freeze, most: int, most_values: int, count: int) -> None:
    config = load(freeze("run", *SMALL))
    data = ImageData(config, (0, 1))
    assert data.plain_images(most, most_values).shape == (count, 1, 10, 10)
