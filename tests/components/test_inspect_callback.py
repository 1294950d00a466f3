"""callbacks=inspect: pictures and histograms in the middle of a run, which trains as without them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pool import Pool
from runs import TINY, Freeze
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from leyden.trainer.cli.main import main
from leyden.trainer.entrypoints.start import start

RUN = ["model=lenet5", "dataset.image_size=16", "trainer.max_epochs=3", "trainer.enable_progress_bar=false"]
RUN += ["trainer.limit_train_batches=4"]
INSPECT = ["callbacks=[default,inspect]", "callbacks.inspect.every_n_epochs=2", "callbacks.inspect.images=30"]
INSPECT += ["callbacks.inspect.layers=1", "callbacks.inspect.maps=2", "callbacks.inspect.explained=2"]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["model"]


def steps(run: Path, kind: str, tag: str) -> list[int]:
    events = EventAccumulator(str(run), size_guidance={"images": 0, "histograms": 0})
    events.Reload()
    return [event.step for event in getattr(events, kind)(tag)]


@pytest.mark.slow
def test_every_second_epoch_and_the_last_are_drawn(freeze: Freeze) -> None:
    plain, shown = freeze("plain", *RUN), freeze("shown", *RUN, *INSPECT)
    assert start(plain) == start(shown) == 0
    assert steps(shown, "Images", "inspect/filters") == [8, 12]
    for kind in ("gradients", "weights"):
        assert steps(shown, "Histograms", f"inspect/{kind}/features.0.weight") == [8, 12]
    assert (shown / "inspect" / "filters.png").is_file()
    without = weights(plain)
    assert all(torch.equal(value, without[name]) for name, value in weights(shown).items())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["butterfly", pytest.param("easgd", marks=pytest.mark.campaign)])
def test_the_first_of_two_workers_draws(freeze: Freeze, pools: Callable[[int], Pool], strategy: str) -> None:
    words = [*RUN, f"strategy={strategy}", "topology.devices_per_node=2", "trainer.max_epochs=2"]
    plain, shown = freeze("plain", *words), freeze("shown", *words, *INSPECT)
    pools(2).run(plain)
    pools(2).run(shown)
    assert steps(shown, "Images", "inspect/occlusion") == [8]
    without = weights(plain)
    if strategy == "butterfly":  # workers in lockstep: the same bits
        assert all(torch.equal(value, without[name]) for name, value in weights(shown).items())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["strategy=fsdp"], "looks at a whole network"),
        (["trainer.compile=true"], "trainer.compile takes apart"),
        (["callbacks.inspect.every_n_epochs=0"], "callbacks.inspect.every_n_epochs"),
        (["callbacks.inspect.imagse=3"], "callbacks.inspect.imagse"),
    ],
)
def test_what_cannot_be_drawn_is_said_before_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    run = tmp_path / "RUN"
    assert main([*TINY, "callbacks=[default,inspect]", *words, f"hydra.run.dir={run}"]) == 2
    assert text in capsys.readouterr().err
    assert not run.exists()
