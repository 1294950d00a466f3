"""The Python interface: `import leyden`, lazy, without signals and exits, the same runs as the command's."""

import gc
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from runs import TINY, distance, metrics, wait_until, weights
from torch import nn

import leyden
from leyden.datasets.digits import Digits
from leyden.trainer.base.errors import ConfigError
from leyden.trainer.cli.main import main
from leyden.trainer.runs.slurm import STOP_REQUESTED

QUIET = [*TINY, "trainer.enable_progress_bar=false"]


def test_a_run_is_the_commands_and_takes_no_signal(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(signal, "signal", lambda number, handler: taken.append(number))
    run = leyden.train(*QUIET, "hydra.run.dir=A")
    assert not taken
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert (run.status, run.folder) == ("done", here / "A")
    assert run.metrics == metrics(run.folder)
    assert main([*QUIET, "hydra.run.dir=B"]) == 0
    assert distance(weights(here / "A"), weights(here / "B")) == 0
    digits = Digits("test", image_size=8)
    found = leyden.load(run).predict(digits.images, top=1)
    right = [each.ranked[0].number == label for each, label in zip(found, digits.labels, strict=True)]
    assert sum(right) / len(right) == pytest.approx(run.metrics["test/acc"], abs=1e-12)


def test_a_run_leaves_the_process_as_it_was(here: Path) -> None:
    """What comes next in a notebook has its settings, and the device's memory."""
    gc.collect()
    before = networks()
    leyden.train(*QUIET, "trainer.max_steps=2", "trainer.deterministic=true")
    assert networks() == before
    assert not torch.are_deterministic_algorithms_enabled()


def networks() -> int:
    """Modules that have not been freed."""
    return sum(issubclass(type(found), nn.Module) for found in gc.get_objects())


def test_it_trains_in_another_thread(here: Path) -> None:
    """As in a notebook's executor, where nobody may take a signal."""
    found: list[leyden.Run] = []
    thread = threading.Thread(target=lambda: found.append(leyden.train(*QUIET, "trainer.max_steps=2")))
    thread.start()
    thread.join()
    assert found[0].status == "done"


def test_a_callback_ends_the_training_of_its_process(here: Path) -> None:
    (here / "stops_here.py").write_text(
        "import leyden\n\nclass Stops:\n    def on_step_end(self, state):\n        assert leyden.stop()\n"
    )
    run = leyden.train(*QUIET, "+callbacks.bad._target_=stops_here.Stops")
    assert (run.status, run.summary["steps"]) == ("preempted", 1)
    assert (run.folder / "checkpoints" / "last.ckpt").exists()
    assert not leyden.stop()


def test_the_stop_command_ends_the_training_and_not_the_program(here: Path) -> None:
    """It is asked for by a file: a signal would be this program's own, and have ended it."""
    hold = ["+callbacks.holds._target_=slurm_examples.HoldsOnce", "+callbacks.holds.step=3"]
    found: list[leyden.Run] = []
    thread = threading.Thread(target=lambda: found.append(leyden.train(*QUIET, *hold, "hydra.run.dir=run")))
    thread.start()
    wait_until(lambda: (here / "run" / "held-0").exists())
    assert main(["stop", "run"]) == 0
    thread.join()
    assert found[0].status == "preempted"
    assert not (here / "run" / STOP_REQUESTED).exists()


def test_compose_returns_the_validated_config(here: Path) -> None:
    config = leyden.compose("model=mlp", "optimizer.lr=0.5")
    assert (config.optimizer and config.optimizer.arguments["lr"], config.batch_size) == (0.5, 64)
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["trainer.max_epoch=3"], "did you mean trainer.max_epochs"),
        (["hydra.mode=MULTIRUN"], "is a sweep, and this is one run"),
        (["topology.launcher=node"], "starts workers of this machine alone"),
        (["dataset=image_folder", "dataset.root=nowhere"], "nowhere"),
    ],
)
def test_mistakes_raise_and_leave_nothing(here: Path, overrides: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        leyden.train("model=mlp", *overrides)
    assert not list(here.iterdir())


def test_a_failed_run_raises_with_its_folder(here: Path) -> None:
    (here / "fails_here.py").write_text(
        "class Fails:\n    def on_step_end(self, state):\n        raise RuntimeError('no')\n"
    )
    with pytest.raises(leyden.TrainingFailed, match="RuntimeError: no") as failed:
        leyden.train(*QUIET, "+callbacks.bad._target_=fails_here.Fails")
    assert failed.value.run.status == "failed"


def test_an_interrupt_is_the_users_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("leyden.trainer.engine.train.test", interrupt)
    with pytest.raises(KeyboardInterrupt):
        leyden.train(*QUIET, "hydra.run.dir=RUN")
    assert leyden.load("RUN").status == "interrupted"
    assert not (here / "RUN" / "agent.json").exists()


LAZY = """
import sys
import leyden
heavy = {"torch", "lightning", "hydra", "pydantic", "numpy", "leyden.trainer"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert {"train", "load", "compose"} <= set(dir(leyden))
try:
    leyden.train("trainer.max_epoch=3")
except ValueError as error:
    assert "trainer.max_epochs" in str(error)
assert not {"torch", "lightning"} & set(sys.modules)
"""


@pytest.mark.slow
def test_importing_costs_nothing_and_a_mistake_no_torch(here: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_several_workers_are_processes_of_their_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = leyden.train(*QUIET, "strategy=ddp", "topology.devices_per_node=2", "trainer.max_steps=3")
    assert run.status == "done"
    assert run.summary["world_size"] == 2
    assert "2 workers" in capsys.readouterr().out
    assert run.predict(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))[0].probability > 0
