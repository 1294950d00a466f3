"""task=simclr: the loss of the paper's equation, over the samples of all workers."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pool import Pool
from runs import HERE, Freeze, cut_back, distance, metrics, weights
from tables import thinned
from torch import Tensor, nn

from leyden.models.mlp import MLP
from leyden.trainer.base.errors import CannotStart
from leyden.trainer.cli.main import main
from leyden.trainer.components.tasks.contrastive import normalize_rows, nt_xent
from leyden.trainer.components.tasks.simclr import SimCLR
from leyden.trainer.entrypoints.start import start

DATA = ["dataset.image_size=8", "dataset.val_fraction=0", "augment=simclr", "augment.crop.scale=[0.5,1.0]"]
EXACT = [*DATA, "model=mlp", "model.hidden=[16]", "task=simclr", "trainer.precision=64-true"]


def drawn(count: int = 6, width: int = 5) -> Tensor:
    return torch.randn(count, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def by_equation(z: list[list[float]], temperature: float) -> float:
    """Eq. 1 and the mean over all positive pairs, rows 2k and 2k + 1, one number at a time."""

    def similarity(u: list[float], v: list[float]) -> float:
        return sum(a * b for a, b in zip(u, v, strict=True)) / math.hypot(*u) / math.hypot(*v)

    def pair(i: int, j: int) -> float:
        others = sum(math.exp(similarity(z[i], z[k]) / temperature) for k in range(len(z)) if k != i)
        return -math.log(math.exp(similarity(z[i], z[j]) / temperature) / others)

    return sum(pair(2 * k, 2 * k + 1) + pair(2 * k + 1, 2 * k) for k in range(len(z) // 2)) / len(z)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_the_loss_is_the_equation_s(temperature: float) -> None:
    z = drawn()
    rows = normalize_rows(z)
    loss, found = nt_xent(rows, rows, torch.ones(6, dtype=torch.bool), 0, temperature)
    assert float(loss) == pytest.approx(by_equation(z.tolist(), temperature), rel=1e-12)
    similar = (rows @ rows.T).fill_diagonal_(-2).argmax(1).tolist()
    assert float(found) == pytest.approx(sum(j == i ^ 1 for i, j in enumerate(similar)) / 6)


def test_rows_that_do_not_count_are_no_negatives() -> None:
    """The second worker has one sample fewer: two of its rows are padding."""
    z = drawn()
    rows = torch.cat([normalize_rows(z), normalize_rows(drawn(2))])
    valid = torch.tensor([True] * 6 + [False] * 2)
    halves = [nt_xent(rows[part], rows, valid, part.start, 0.5)[0] for part in (slice(0, 4), slice(4, 6))]
    assert float(halves[0] * 4 + halves[1] * 2) / 6 == pytest.approx(by_equation(z.tolist(), 0.5), rel=1e-12)
    assert torch.isfinite(nt_xent(rows[6:], rows, valid, 6, 0.5)[0])


def test_the_output_layer_is_replaced() -> None:
    task = SimCLR(MLP(10, (1, 8, 8), [16]), width=4, hidden=7)
    assert task.model(torch.zeros(2, 1, 8, 8)).shape == (2, 16)
    assert [tuple(p.shape) for p in task.projection.parameters()] == [(7, 16), (4, 7)]
    with pytest.raises(ValueError, match="that of Sequential is Conv2d"):
        SimCLR(nn.Sequential(nn.Conv2d(1, 2, 3)))


CASES = {
    "ddp, shares of 19 and 18": ["strategy=ddp", "batch_size=100", "trainer.max_epochs=1"],
    "ddp, a worker without samples": ["strategy=ddp", "batch_size=1436", "trainer.max_epochs=2"],
    "butterfly": ["strategy=butterfly", "strategy.lazy=true", "batch_size=100", "trainer.max_steps=5"],
    "fsdp": ["strategy=fsdp", "batch_size=100", "trainer.max_steps=5"],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", thinned(CASES, in_ci=["ddp, shares of 19 and 18", "ddp, a worker without samples"]))
def test_two_workers_equal_one(freeze: Freeze, pools: Callable[[int], Pool], case: str) -> None:
    strategy, *options = CASES[case]
    chosen = [word for word in options if not word.startswith("strategy")]
    one = freeze("one", *EXACT, *chosen)
    two = freeze("two", *EXACT, strategy, *options, "topology.devices_per_node=2")
    assert start(one) == 0
    pools(2).run(two)
    assert distance(weights(two), weights(one)) < 1e-10
    for name in ("train/loss", "train/acc"):
        assert metrics(two)[name] == pytest.approx(metrics(one)[name], rel=1e-6)


def test_resuming_is_exact_and_a_probe_starts_from_the_features(
    freeze: Freeze, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["callbacks.checkpoint.every_n_steps=3", "callbacks.checkpoint.keep_last=9", "batch_size=200"]
    whole = freeze("whole", *EXACT, *options, "trainer.max_steps=6")
    assert start(whole) == 0
    assert "leyden eval" not in capsys.readouterr().out
    assert start(whole, "eval") == 0
    assert "nothing was evaluated: SimCLR logs no metrics" in capsys.readouterr().out
    again = cut_back(whole, tmp_path / "again", 3)
    assert start(again, "resume") == 0
    assert distance(weights(whole), weights(again)) == 0
    probe = freeze("probe", "model=mlp", "model.hidden=[16]", "dataset.image_size=8", "trainer.max_epochs=1",
                   f"model.pretrained={whole}", "model.freeze=[layers.1]")  # fmt: skip
    assert start(probe) == 0
    features = "model.layers.1.weight"
    assert torch.equal(weights(probe)[features], weights(whole)[features].float())
    assert metrics(probe)["test/acc"] > 0


WORKERS = "topology.devices_per_node=2"


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("words", "text", "remedy"),
    [
        (["augment=none"], "compares two views of each image", "augment=simclr"),
        (["augment=imagenet"], "augment.crop.views = 1 task=simclr compares two views", "augment.crop.views=2"),
        (["augment.crop=null"], "compares two views of each image", "augment=simclr"),
        (["augment.batch.grayscale.p=2"], "must be at least 0 and at most 1", ""),
        (["trainer.accumulate_grad_batches=2"], "would have the negatives of that part alone", "batches=1"),
        (["strategy=local_sgd", WORKERS], "its workers do not compute one step together", "strategy=ddp"),
        (["strategy=easgd", WORKERS], "its workers do not compute one step together", "strategy=ddp"),
        (["strategy=asgd", WORKERS], "its workers do not compute one step together", "strategy=ddp"),
        (["strategy=hybrid", WORKERS], "its workers do not compute one step together", "strategy=ddp"),
        (["strategy=spatial", "model=local_net"], "its workers do not compute one step together", "strategy=ddp"),
        (["task.temperature=0"], "must be greater than 0", ""),
        (["task.width=0"], "must be at least 1", ""),
        (["task.hidden=0"], "must be at least 1", ""),
        (["callbacks.checkpoint.monitor=val/loss"], "is not logged", "train/loss"),
    ],
)
def test_mistakes_are_named(words: list[str], text: str, remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model=mlp", "dataset.image_size=8", "task=simclr", "augment=simclr", *words]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert text in error
    assert remedy in error


def test_views_of_somebody_s_augmentation_are_counted(freeze: Freeze) -> None:
    own = ["augment._target_=one_view_examples.OneView", HERE]
    run_dir = freeze("run", *EXACT, *own)
    with pytest.raises(CannotStart, match="augment: makes 1 views of an image, and the task compares 2"):
        start(run_dir)
