"""`leyden inspect RUN`: what is drawn equals the definitions, on networks small enough for them."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from runs import TINY, Freeze
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

from leyden.models.lenet5 import LeNet5
from leyden.models.resnet_cifar import ResNetCIFAR
from leyden.trainer.cli.main import main
from leyden.trainer.diagnostics.inspection.class_activation import CAM, GRAD_CAM, class_activation_maps
from leyden.trainer.diagnostics.inspection.deconvolution import Backward, backward_of, project
from leyden.trainer.diagnostics.inspection.first_layer import first_filters
from leyden.trainer.diagnostics.inspection.forward_trace import ForwardTrace
from leyden.trainer.diagnostics.inspection.mistakes import worst_mistakes
from leyden.trainer.diagnostics.inspection.occlusion import occlusion_map
from leyden.trainer.diagnostics.inspection.receptive_field import ReceptiveFields
from leyden.trainer.diagnostics.inspection.top_activations import TopActivations, evenly_spaced
from leyden.trainer.diagnostics.pictures.colours import around_grey, heat
from leyden.trainer.runs.lease import hold_lease

# algorithms


class Functional(nn.Module):
    """Two convolutions whose ReLU is a function, and changes its input."""

    def __init__(self, first: nn.Conv2d, second: nn.Conv2d):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, images: Tensor) -> Tensor:
        maps = self.first(images)
        F.relu_(maps)
        return F.relu(self.second(F.max_pool2d(maps, 2)), inplace=True)


def two_convolutions() -> tuple[nn.Conv2d, nn.Conv2d]:
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 5, 3)
    return first.double().requires_grad_(False), second.double().requires_grad_(False)


def by_hand(first: nn.Conv2d, second: nn.Conv2d, images: Tensor, maps: Tensor, places: Tensor, guided: bool) -> Tensor:
    """Zeiler and Fergus, layer by layer: rectify, transposed filters, unpool, rectify, transposed filters."""
    below = first(images)
    pooled, switches = F.max_pool2d(below.relu(), 2, return_indices=True)
    above = second(pooled).relu()
    signal = torch.zeros_like(above).flatten(2)
    rows = torch.arange(len(images))
    signal[rows, maps, places] = above.flatten(2)[rows, maps, places]
    signal = F.conv_transpose2d(signal.view_as(above).relu(), second.weight)
    signal = F.max_unpool2d(signal, switches, [2, 2], output_size=below.shape).relu()
    return F.conv_transpose2d(signal * (below > 0) if guided else signal, first.weight, padding=1)


@pytest.mark.parametrize("backward", [Backward.DECONVNET, Backward.GUIDED])
def test_projection_is_that_of_a_network_built_by_hand(backward: Backward) -> None:
    first, second = two_convolutions()
    modules = nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(inplace=True), nn.Flatten())
    images = torch.randn(6, 3, 10, 10, dtype=torch.float64)
    places = second(F.max_pool2d(first(images).relu(), 2)).flatten(2).argmax(2)
    maps = torch.tensor([0, 1, 2, 3, 4, 0])
    places = places[torch.arange(6), maps]
    wanted = by_hand(first, second, images, maps, places, backward is Backward.GUIDED)
    assert wanted.abs().max() > 0.01
    for network, layer in ((modules, "3"), (Functional(first, second), "second")):
        found = project(network, images, layer, maps, places, backward)
        assert float((found - wanted).abs().max()) < 1e-6
    plain = project(modules, images, "3", maps, places, Backward.GRADIENT)
    assert float((plain - wanted).abs().max()) > 1e-3


def traced(network: nn.Module, side: int = 16) -> ForwardTrace:
    with torch.no_grad(), ForwardTrace(network.eval()) as trace:
        network(torch.randn(1, 3, side, side))
    return trace


def test_the_projection_follows_from_the_network() -> None:
    strided = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU())
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2))
    smooth = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU())
    assert backward_of(traced(LeNet5(10, (3, 16, 16)))) == (Backward.DECONVNET, "")
    assert backward_of(traced(pooled)) == (Backward.DECONVNET, "")
    assert backward_of(traced(strided)) == (Backward.GUIDED, "strides in place of max-pooling")
    assert backward_of(traced(ResNetCIFAR(10, (3, 16, 16), 8))) == (Backward.GUIDED, "residual branches")
    assert backward_of(traced(smooth))[0] is Backward.GRADIENT
    names = list(traced(ResNetCIFAR(10, (3, 16, 16), 8)).maps)
    assert names == ["stem.0", *(f"blocks.{block}.conv{number}" for block in range(3) for number in (1, 2))]


def test_the_largest_activations_are_found_batch_by_batch() -> None:
    maps = torch.randn(23, 4, 3, 5)
    maps[:, 2] = -1
    maps[4:, 3] = -maps[4:, 3].abs()
    maps[:4, 3] = maps[:4, 3].abs() + 1
    top = TopActivations(9)
    for first in range(0, 23, 5):
        top.update(maps[first : first + 5], first)
    best, images = maps.flatten(2).amax(2).T.sort(dim=1, descending=True)
    alive = [0, 1, 3]
    assert torch.equal(top.values, best[:, :9])
    assert torch.equal(top.images[alive], images[alive, :9])
    row, column = divmod(int(top.positions[0, 0]), top.shape[1])
    assert maps[top.images[0, 0], 0, row, column] == top.values[0, 0]
    assert top.active == [9, 9, 0, 4]
    assert top.spread(2) == [1, 3]
    assert top.spread(9) == alive
    assert evenly_spaced(list("abcdefgh"), 3) == ["c", "e", "h"]


def test_receptive_fields_are_those_of_the_layers() -> None:
    """3 x 3, pooled by 2, 3 x 3: 8 pixels a side, from 2 p - 3 on; cut off at the border, and by the cuts above 32."""
    network = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 2, 3, padding=1))
    network.append(nn.ReLU())
    fields = ReceptiveFields(network, (1, 20, 24), "3", torch.device("cpu"))
    assert fields.box(4, 5) == (5, 13, 7, 15)
    assert fields.box(0, 11) == (0, 5, 19, 24)
    assert fields.largest == (8, 8)
    large = ReceptiveFields(network, (1, 64, 64), "3", torch.device("cpu")).box(10, 10)
    assert large == (16, 26, 16, 26)


def detector() -> nn.Module:
    """Trained to find a bright square in noise: class 1."""
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(60):
        images, labels = 0.3 * torch.randn(32, 1, 16, 16), torch.arange(32) % 2
        for number in range(1, 32, 2):
            top, left = torch.randint(0, 12, (2,)).tolist()
            images[number, 0, top : top + 4, left : left + 4] += 2
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
    return network.eval()


def test_evidence_lies_on_the_object() -> None:
    network, image = detector(), 0.3 * torch.randn(1, 16, 16)
    image[:, 9:13, 2:6] += 2
    assert network(image[None]).argmax() == 1
    covered = occlusion_map(lambda images: network(images).softmax(1), image, 1, patch=4, stride=1)
    assert covered.shape == (16, 16)
    row, column = divmod(int(covered.argmin()), 16)
    assert 9 <= row <= 13
    assert 2 <= column <= 6
    assert covered.min() < 0.5 < covered[2, 12]
    made = class_activation_maps(network, image[None], torch.tensor([1]))
    assert made is not None
    row, column = divmod(int(made[0][0].argmax()), 16)
    assert 8 <= row <= 13
    assert 1 <= column <= 6


def test_an_occluded_image_is_covered_as_said() -> None:
    def probabilities(images: Tensor) -> Tensor:
        return torch.sigmoid(torch.stack([images.sum((1, 2, 3)), torch.zeros(len(images))], 1))

    found = occlusion_map(probabilities, torch.full((1, 6, 6), 0.1), 0, patch=2, stride=5)
    assert torch.allclose(found, torch.sigmoid(torch.tensor([[3.5, 3.4], [3.4, 3.2]])))


def test_a_class_activation_map_adds_up_to_the_score() -> None:
    network = ResNetCIFAR(10, (3, 16, 16), 8).eval()
    images, classes = torch.randn(4, 3, 16, 16), torch.tensor([3, 1, 4, 1])
    made = class_activation_maps(network, images, classes)
    assert made is not None
    assert made[1:] == (CAM, "blocks.2.conv2")
    scores = network(images).gather(1, classes[:, None])[:, 0] - network.classifier.bias[classes]
    assert torch.allclose(made[0].mean((1, 2)), scores, atol=1e-5)


def test_grad_cam_where_the_head_is_another() -> None:
    network = LeNet5(10, (1, 16, 16)).eval()
    images, classes = torch.randn(4, 1, 16, 16), torch.tensor([3, 1, 4, 1])
    made = class_activation_maps(network, images, classes)
    assert made is not None
    assert made[1:] == (GRAD_CAM, "features.3")
    features = network.features[:5](images).detach().requires_grad_()
    scores = network.classifier(network.features[5:](features))
    (gradients,) = torch.autograd.grad(scores.gather(1, classes[:, None]).sum(), features)
    wanted = (gradients.mean((2, 3), keepdim=True) * features).sum(1).clamp(min=0)
    assert torch.allclose(made[0], wanted, atol=1e-6)
    assert class_activation_maps(nn.Sequential(nn.Flatten(), nn.Linear(256, 10)), images, classes) is None


def test_mistakes_filters_and_colours() -> None:
    probabilities = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.4, 0.6]])
    found = worst_mistakes(probabilities, torch.tensor([1, 1, 1, 0]), 2)
    assert [(each.image, each.label, each.found) for each in found] == [(0, 1, 0), (1, 1, 0)]
    assert found[0].of_label == pytest.approx(0.1)
    assert len(worst_mistakes(probabilities, torch.tensor([1, 1, 1, 0]), 9)) == 3
    linear = nn.Linear(12, 5)
    drawn = first_filters(linear, (3, 2, 2))
    assert drawn is not None
    assert torch.equal(drawn[4].flatten(), linear.weight[4])
    assert first_filters(linear, (3, 2, 3)) is None
    assert around_grey(torch.tensor([[[-2.0, 0.0, 1.0, 2.0]]])).flatten().tolist() == [0, 128, 191, 255]
    assert heat(torch.tensor([[0.0, 2.0]]), 0.0, 1.0)[:, 0].T.tolist() == [[68, 1, 84], [253, 231, 37]]


# the command


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "RUN"
    words = ["model=lenet5", "dataset.image_size=16", "trainer.max_epochs=1", "trainer.enable_progress_bar=false"]
    assert main([*words, f"hydra.run.dir={folder}"]) == 0
    return folder


def files_of(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


FEW = ["images=40", "layers=2", "maps=2", "explained=2", "mistakes=3"]
PICTURES = ["class_activation", "features_1_features.0", "features_2_features.3", "filters", "mistakes", "occlusion"]


def test_a_run_is_drawn_into_a_folder(trained: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, generator = files_of(trained), torch.get_rng_state()
    assert main(["inspect", str(trained), *FEW, "--out", "shown"]) == 0
    said = capsys.readouterr().out
    assert files_of(trained) == before, "with --out a run folder is read alone"
    assert torch.equal(torch.get_rng_state(), generator)
    assert sorted(path.stem for path in here.glob("shown/*.png")) == PICTURES
    assert "features.3: deconvnet; the 9 largest activations of 2 maps over 40 validation images" in said
    assert "Grad-CAM of features.3" in said
    for path in here.glob("shown/*.png"):
        with Image.open(path) as picture:
            assert len(np.unique(np.asarray(picture))) > 20, path


def test_tensorboard_gets_pictures_and_histograms(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(trained), *FEW]) == 0
    assert sorted(path.stem for path in (trained / "inspect").iterdir()) == PICTURES
    events = EventAccumulator(str(trained))
    events.Reload()
    tags = events.Tags()
    assert {f"inspect/{name}" for name in PICTURES} <= set(tags["images"])
    assert "images/train" in tags["images"], "the run's own stay"
    histograms = set(tags["histograms"])
    kinds = {"weights/features.0.weight", "activations/features.3", "gradients/features.0.weight"}
    assert {f"inspect/{kind}" for kind in kinds} <= histograms
    (event,) = events.Images("inspect/filters")
    logged = np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))
    assert np.array_equal(logged, np.asarray(Image.open(trained / "inspect" / "filters.png")))
    weights = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)["model"]
    assert events.Histograms("inspect/weights/features.0.weight")[0].histogram_value.num == next(
        value.numel() for name, value in weights.items() if name.endswith("features.0.weight")
    )


def test_what_a_network_does_not_have_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "trainer.enable_progress_bar=false", "hydra.run.dir=MLP"]) == 0
    assert main(["inspect", "MLP", *FEW, "mistakes=0", "--best"]) == 0
    said = capsys.readouterr().out
    assert "no feature maps: no layer" in said
    assert "no class activation maps: no layer" in said
    assert sorted(path.stem for path in (here / "MLP" / "inspect").iterdir()) == ["filters", "occlusion"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["RUN", "layers=x"], "must be a whole number of at least 0"),
        (["RUN", "maps=0"], "must be a whole number of at least 1"),
        (["RUN", "model=mlp"], "a network is used as it was trained"),
        (["RUN", "RUN"], "takes one run at a time"),
        (["RUN", "--out", "no/where"], "must be a folder, in a folder that exists"),
        (["RUN", "--config-dir", "RUN"], "goes with inspect augment"),
        (["RUN/checkpoints/last.ckpt", "--best"], "chooses a checkpoint, and one is named"),
        (["EMPTY"], "this folder holds no run"),
    ],
)
def test_mistakes_in_words_leave_nothing(
    trained: Path, here: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    (here / "RUN").symlink_to(trained)
    (here / "EMPTY").mkdir()
    before = files_of(trained)
    assert main(["inspect", *words]) == 2
    assert text in capsys.readouterr().err
    assert sorted(path.name for path in here.iterdir()) == ["EMPTY", "RUN"]
    assert files_of(trained) == before


def test_a_running_run_keeps_its_log_to_itself(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hold_lease(trained):
        assert main(["inspect", str(trained)]) == 2
    error = capsys.readouterr().err
    assert "is running, and its TensorBoard log has one writer" in error
    assert "--out" in error


def test_a_run_without_checkpoint(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    run = freeze("new", *TINY)
    assert main(["inspect", str(run)]) == 2
    assert "has no checkpoint yet" in " ".join(capsys.readouterr().err.split())
    assert not (run / "inspect").exists()


def test_a_strangers_run_needs_trust(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    run = freeze("theirs", *TINY)
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("leyden.models.mlp.MLP", "their_code.Net"))
    os.chown(run, 65534, 65534)
    assert main(["inspect", str(run)]) == 2
    assert "--trust" in capsys.readouterr().err
