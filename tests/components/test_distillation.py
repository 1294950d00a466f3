"""task=distillation: the loss of the paper, a teacher outside of the task, the same on any number of workers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pool import Pool
from runs import TINY, Freeze, cut_back, distance, metrics, weights
from safetensors.torch import save_file
from tables import thinned
from torch import Tensor, nn

import leyden
from leyden.trainer.base.errors import CannotStart
from leyden.trainer.cli.main import main
from leyden.trainer.components.tasks.distillation import Distillation, soft_target_loss
from leyden.trainer.entrypoints.start import start

EXACT = [*TINY, "trainer.precision=64-true", "trainer.max_steps=6", "task=distillation"]
NEW = ["model=mlp", "dataset.image_size=8", "task=distillation"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a network twice as wide as its students."""
    run_dir = tmp_path_factory.mktemp("teacher") / "run"
    words = ["model=mlp", "model.hidden=[32]", "dataset.image_size=8", "trainer.max_epochs=4", "optimizer.lr=0.05"]
    assert main([*words, f"hydra.run.dir={run_dir}", "callbacks.checkpoint.save_top_k=0"]) == 0
    return run_dir


def by_formula(student: Tensor, teacher: Tensor, labels: list[int], t: float, alpha: float) -> float:
    total = 0.0
    for z, v, label in zip(student.tolist(), teacher.tolist(), labels, strict=True):
        p, q, hard = (torch.tensor(x, dtype=torch.float64).exp() for x in ([e / t for e in v], [e / t for e in z], z))
        p, q, hard = p / p.sum(), q / q.sum(), hard / hard.sum()
        kl = sum(float(a * (a / b).log()) for a, b in zip(p, q, strict=True))
        total += (1 - alpha) * -float(hard[label].log()) + alpha * t**2 * kl
    return total / len(labels)


class Scores(nn.Module):
    """Scores that are given, with a parameter, a BatchNorm's buffers and a Dropout."""

    def __init__(self, scores: Tensor):
        super().__init__()
        self.scores = nn.Parameter(scores)
        self.norm = nn.BatchNorm1d(4).double()
        self.drop = nn.Dropout(0.9)

    def forward(self, images: Tensor) -> Tensor:
        return self.scores + 0 * self.drop(self.norm(images)) if self.training else self.scores


def made(temperature: float, alpha: float) -> tuple[Distillation, Scores, Scores, dict[str, float]]:
    draws = torch.Generator().manual_seed(0)
    student, teacher = (Scores(torch.randn(6, 4, dtype=torch.float64, generator=draws) * 3) for _ in range(2))
    task = Distillation(student, 4, "run", temperature, alpha)
    logged: dict[str, float] = {}
    vars(task)["log"] = lambda name, value, **_: logged.__setitem__(name, float(value.detach()))
    task.set_teacher(teacher)
    return task.train(), student, teacher, logged


@pytest.mark.parametrize(("temperature", "alpha"), [(1.0, 0.5), (4.0, 0.9), (20.0, 1.0), (2.0, 0.0)])
def test_the_loss_is_the_paper_s(temperature: float, alpha: float) -> None:
    task, student, teacher, logged = made(temperature, alpha)
    labels = [0, 3, 1, 1, 2, 0]
    images = torch.randn(6, 4, dtype=torch.float64)
    loss = task.training_step((images, torch.tensor(labels)), 0)
    assert float(loss.detach()) == pytest.approx(
        by_formula(student.scores, teacher.scores, labels, temperature, alpha), 1e-12
    )
    terms = (1 - alpha) * logged["train/cross_entropy"] + alpha * logged["train/kl"]
    assert terms == pytest.approx(logged["train/loss"], rel=1e-12)
    loss.backward()
    assert student.scores.grad is not None


def test_at_high_temperatures_the_gradient_is_that_of_matching_scores() -> None:
    """Eq. 4 of the paper: dC/dz = (z - v) / (N T^2), for scores of mean 0; times T^2 by the loss."""
    draws = torch.Generator().manual_seed(1)
    z, v = (torch.randn(1, 5, dtype=torch.float64, generator=draws) for _ in range(2))
    z, v = (z - z.mean()).requires_grad_(), v - v.mean()
    soft_target_loss(z, v, 1e4).backward()
    torch.testing.assert_close(z.grad, (z - v).detach() / 5, rtol=1e-3, atol=1e-6)


def test_the_teacher_is_outside_of_the_task() -> None:
    task, _, teacher, _ = made(4.0, 0.9)
    statistics = teacher.norm.running_mean
    task.training_step((torch.randn(6, 4, dtype=torch.float64), torch.zeros(6, dtype=torch.long)), 0)
    assert not teacher.training
    assert statistics is not None
    assert not statistics.any()
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert set(task.state_dict()) == {f"model.{name}" for name in teacher.state_dict()}
    assert [id(p) for p in task.parameters()] == [id(p) for p in task.model.parameters()]


def test_the_command_pins_the_teacher(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(teacher.parent)
    run_dir = tmp_path / "student"
    words = [*NEW, "model.hidden=[16]", "trainer.max_epochs=2", f"hydra.run.dir={run_dir}", "task.teacher=run"]
    assert main(words) == 0
    pinned = yaml.safe_load((run_dir / "config.yaml").read_text())["task"]["teacher"]
    file = teacher / "checkpoints" / "step=00000072.ckpt"
    assert (pinned["source"], pinned["path"]) == ("run", str(file))
    assert len(pinned["sha256"]) == 64
    assert set(weights(run_dir)) == set(weights(teacher))
    assert metrics(run_dir)["train/kl"] > 0
    (moved := tmp_path / "moved").mkdir()
    for path in (teacher / "checkpoints").iterdir():
        shutil.move(path, moved)
    try:
        assert main(["eval", str(run_dir)]) == 0
        assert leyden.load(run_dir).predict(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
        with pytest.raises(CannotStart, match="is not there"):
            start(run_dir, "resume")
        shutil.copy(moved / "last.ckpt", file)
        with file.open("ab") as opened:
            opened.write(b" ")
        with pytest.raises(CannotStart, match="has changed since the run was frozen"):
            start(run_dir, "resume")
    finally:
        for path in moved.iterdir():
            shutil.move(path, teacher / "checkpoints" / path.name)


def test_an_exported_network_teaches_as_its_run(teacher: Path, freeze: Freeze, tmp_path: Path) -> None:
    file = leyden.load(teacher).export("safetensors", tmp_path / "network.safetensors")
    of_run, of_file = (freeze(name, *EXACT, f"task.teacher={source}") for name, source in
                       (("run", teacher), ("file", file)))  # fmt: skip
    assert start(of_run) == start(of_file) == 0
    assert distance(weights(of_run), weights(of_file)) == 0
    other = freeze("other", *EXACT, f"task.teacher={file}", "task.alpha=0")
    assert start(other) == 0
    assert distance(weights(other), weights(of_run)) > 1e-3


def test_resuming_is_exact(teacher: Path, freeze: Freeze, tmp_path: Path) -> None:
    options = [*EXACT, f"task.teacher={teacher}", "callbacks.checkpoint.every_n_steps=3", "model.dropout=0.2"]
    whole = freeze("whole", *options, "callbacks.checkpoint.save_top_k=-1", "callbacks.checkpoint.keep_last=9")
    assert start(whole) == 0
    again = cut_back(whole, tmp_path / "again", 3)
    assert start(again, "resume") == 0
    assert distance(weights(whole), weights(again)) == 0


STRATEGIES = {
    "ddp": ["strategy=ddp"],
    "butterfly": ["strategy=butterfly"],
    "fsdp": ["strategy=fsdp"],
    "hybrid": ["strategy=hybrid", "strategy.scheme=b"],
    "local_sgd": ["strategy=local_sgd", "strategy.h=1"],
    "spatial": ["strategy=spatial"],
}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", thinned(STRATEGIES, in_ci=["fsdp", "hybrid"]))
def test_two_workers_equal_one(teacher: Path, freeze: Freeze, pools: Callable[[int], Pool], strategy: str) -> None:
    model = ["model=local_net", "model.maps=[2]", "model.rf=4"] if strategy == "spatial" else ["model.hidden=[16]"]
    options = [word for word in EXACT if not (strategy == "spatial" and word.startswith("model"))]
    options += [*model, f"task.teacher={teacher}"]
    one = freeze("one", *options)
    two = freeze("two", *options, *STRATEGIES[strategy], "topology.devices_per_node=2")
    assert start(one) == 0
    pools(2).run(two)
    assert distance(weights(two), weights(one)) < 1e-10
    assert metrics(two)["train/kl"] == pytest.approx(metrics(one)["train/kl"], rel=1e-6)


def of_another(kind: str, teacher: Path, folder: Path) -> str:
    """A teacher that cannot teach."""
    run_dir = folder / "other"
    if kind == "somebody's weights":
        save_file({"weight": torch.zeros(2)}, folder / "weights.safetensors")
        return str(folder / "weights.safetensors")
    if kind == "a stranger's class":
        about = json.dumps({"model": {"_target_": "os.system", "command": "true"}})
        save_file({"weight": torch.zeros(2)}, folder / "weights.safetensors", {"leyden": about})
        return str(folder / "weights.safetensors")
    run_dir.mkdir()
    config: Any = yaml.safe_load((teacher / "config.yaml").read_text())
    if kind == "no model":
        config["model"] = None
    if kind == "other classes":
        shutil.copytree(teacher / "checkpoints", run_dir / "checkpoints")
        names = ("samples", "classes", "image_shape")
        of_data = {"_target_": "leyden.datasets.synthetic.Synthetic", "samples": 9, "classes": 7,
                   "image_shape": [1, 8, 8]}  # fmt: skip
        given = {k: v for k, v in config["dataset"].items() if k not in (*names, "_target_", "image_size")}
        config["dataset"] = {**given, **of_data}
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config))
    return str(run_dir)


@pytest.mark.parametrize(
    ("kind", "text", "remedy"),
    [
        ("no model", "Classification of this run brings its own network", "a run whose model is named"),
        ("no checkpoint", "this run has no checkpoint yet", "task.teacher=RUN"),
        ("other classes", "its number of classes is 7, and that of the dataset is 10", "trained on images like these"),
        ("somebody's weights", "does not say which network its weights are of", "leyden export RUN"),
        ("a stranger's class", "model._target_ in it is neither a class of Leyden's", "the run itself"),
    ],
)
def test_who_cannot_teach(
    teacher: Path, tmp_path: Path, kind: str, text: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert main([*NEW, f"task.teacher={of_another(kind, teacher, tmp_path)}", f"hydra.run.dir={run_dir}"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert text in error
    assert remedy in error
    assert not run_dir.exists()


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("words", "text", "remedy"),
    [
        ([], "must be given, there is no value for it yet", "task.teacher="),
        (["task.teacher=nowhere"], "there is no such run folder or file", "task.teacher=RUN"),
        (["task.teacher=t.pth"], "could execute code", "safetensors.torch.save_file"),
        (["task.teacher=timm:resnet50.a1_in1k"], "takes runs and files", "task.teacher=RUN"),
        (["task.teacher=."], "this folder holds no run", ""),
        (["task.teacher=run", "task.temperature=0"], "must be greater than 0", ""),
        (["task.teacher=run", "task.alpha=1.5"], "must be at least 0 and at most 1", ""),
        (["task.teacher=run", "dataset.image_size=16"], "its image shape is 1 x 8 x 8, and that", "like these"),
    ],
)
def test_mistakes_are_named(
    teacher: Path, words: list[str], text: str, remedy: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(teacher.parent)
    assert main([*NEW, *words]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert text in error
    assert remedy in error


def test_weights_that_do_not_fit_are_found_by_the_worker(teacher: Path, freeze: Freeze) -> None:
    other = freeze("other", *EXACT, f"task.teacher={teacher}", "dataset.image_size=16")
    with pytest.raises(CannotStart, match=r"layers.1.weight is \(32, 64\), not \(32, 256\)"):
        start(other)
