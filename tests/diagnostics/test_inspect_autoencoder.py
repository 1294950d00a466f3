"""`leyden inspect RUN` of an autoencoder: stimuli, selectivity of neurons, reconstructions; gradients of any task."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from leyden.models.cots_autoencoder import COTSAutoencoder
from leyden.trainer.cli.main import main
from leyden.trainer.diagnostics.inspection.best_stimulus import best_stimuli
from leyden.trainer.diagnostics.inspection.first_layer import filters_by_position
from leyden.trainer.diagnostics.inspection.report.autoencoder import is_autoencoder, stage_features
from leyden.trainer.diagnostics.inspection.selectivity import best_thresholds, selectivity

CPU = torch.device("cpu")


def test_the_best_stimulus_of_a_linear_neuron_is_its_filter() -> None:
    torch.manual_seed(0)
    filters, generator = torch.randn(5, 1, 6, 6), torch.get_rng_state()
    found, answers = best_stimuli(lambda x: (x * filters).sum((1, 2, 3)), (1, 6, 6), 5, 3.0, CPU)
    assert torch.equal(torch.get_rng_state(), generator)
    cosines = nn.functional.cosine_similarity(found.flatten(1), filters.flatten(1))
    assert float(cosines.min()) > 0.9999
    assert torch.allclose(found.flatten(1).norm(dim=1), torch.tensor(3.0))
    assert torch.allclose(answers, 3.0 * filters.flatten(1).norm(dim=1), rtol=1e-3)


def test_the_best_stimulus_of_a_pooling_neuron_is_its_largest_component() -> None:
    """|A x| is largest, over |x| = 1, for the first right singular vector of A: the energy of an L2 pooling unit."""
    torch.manual_seed(1)
    pooled = torch.randn(3, 4, 25)
    values, vectors = torch.linalg.svd(pooled)[1:]
    responses = lambda x: torch.einsum("npd,nd->np", pooled, x.flatten(1)).norm(dim=1)  # noqa: E731
    found, answers = best_stimuli(responses, (1, 5, 5), 3, 1.0, CPU)
    assert torch.allclose(answers, values[:, 0], rtol=1e-2)
    assert float((found.flatten(1) * vectors[:, 0]).sum(1).abs().min()) > 0.97


def test_selectivity_is_the_best_threshold_over_all() -> None:
    torch.manual_seed(2)
    activations = torch.randn(40, 7).mul(4).round()  # with equal values
    labels = torch.arange(40) % 4
    activations[:, 3] = (labels == 2).float() + 0.1 * torch.rand(40)
    wanted = labels == 2

    def by_hand(column: torch.Tensor) -> float:
        thresholds = [-99.0, *column.unique().tolist()]
        right = [((column > t)[wanted].float().mean() + (column <= t)[~wanted].float().mean()) / 2 for t in thresholds]
        return float(max(right))

    found = best_thresholds(activations, wanted)
    assert found.tolist() == pytest.approx([by_hand(column) for column in activations.T])
    best = selectivity(activations, labels, [0, 2])
    assert best.neuron[1] == 3
    assert best.accuracy[1] == 1.0
    assert best_thresholds(torch.zeros(40, 2), wanted).tolist() == [0.5, 0.5]


@torch.no_grad()
def test_filters_and_features_are_the_networks() -> None:
    network = COTSAutoencoder((1, 12, 12), maps=3, stages=2, rf=4, pool=2, lcn=3)
    layer: Any = network.stages[0].filters
    filters = filters_by_position(layer, (1, 12, 12))
    assert filters is not None
    assert filters.shape == (81, 3, 1, 4, 4)
    images = torch.rand(2, 1, 12, 12)
    answers = layer(images)
    unit = filters[9 * 2 + 5, 1, 0] / filters[9 * 2 + 5, 1, 0].norm()
    assert float(answers[0, 1, 2, 5]) == pytest.approx(float((unit * images[0, 0, 2:6, 5:9]).sum()), abs=1e-5)
    assert filters_by_position(nn.Conv2d(1, 3, 4), (1, 12, 12)) is None
    classifier = nn.Sequential(nn.Linear(4, 2))
    classifier.stages = nn.ModuleList([nn.Linear(4, 4)])
    assert is_autoencoder(network)
    assert not is_autoencoder(classifier)
    features = stage_features(network, images)
    assert len(features) == 2
    assert torch.equal(features[1], network(images))
    error = (network.reconstruction(images) - images).square().flatten(1).sum(1)
    assert torch.allclose(error, network(images, 0)[:, 0], rtol=1e-4)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    words = ["experiment=cots_digits", "trainer.max_epochs=2", "trainer.enable_progress_bar=false"]
    assert main([*words, "dataset.image_size=12", "model.rf=4", f"hydra.run.dir={tmp_path / 'RUN'}"]) == 0
    return tmp_path / "RUN"


@pytest.mark.slow
def test_an_autoencoder_is_drawn(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(trained), "images=60", "maps=2", "explained=3"]) == 0
    said = capsys.readouterr().out
    assert "no histograms of gradients" not in said
    wanted = ["receptive_fields", "reconstructions", "selectivity", "stimuli_1", "stimuli_2"]
    assert sorted(path.stem for path in (trained / "inspect").iterdir()) == wanted
    assert "neurons of the last stage for each class by a threshold" in said
