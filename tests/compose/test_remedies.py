"""What Leyden suggests in place of a mistake: the suggestion is typed, and it works; or there is none."""

import re
from pathlib import Path

import pytest

from leyden.trainer.base.errors import ConfigError, Problem, nearest, spell_value
from leyden.trainer.cli.main import main
from leyden.trainer.compose.composer import Composer
from leyden.trainer.compose.known_names import CHOICES, find_equivalent
from leyden.trainer.hardware import topology

pytestmark = pytest.mark.thinned(4)

_OVERRIDE = re.compile(r"\+?[\w.@/]+=\S+")


@pytest.fixture
def here(here: Path) -> Path:
    (here / "photos").mkdir()
    return here


# the mistake, and what the remedy must begin with; "": no remedy
TRANSLATED = {
    # Lightning
    "max_epochs=3": "trainer.max_epochs=3",
    "trainer.devices=2": "topology.devices_per_node=2 strategy=ddp",
    "devices=[0,1]": "topology.devices_per_node=2 strategy=ddp",
    "trainer.num_nodes=2": "topology.nodes=2 topology.launcher=node strategy=ddp",
    "trainer.strategy=ddp_spawn": "strategy=ddp",
    "trainer.precision=16": "trainer.precision=bf16-mixed",  # float16 needs a GPU
    "precision=bf16": "trainer.precision=bf16-mixed",
    "trainer.default_root_dir=runs/a": "hydra.run.dir=runs/a",
    "ckpt_path=last.ckpt": "leyden resume last.ckpt",
    "trainer.accelerator=cpu": "topology.device.kind=cpu",
    "gradient_clip_val=1.0": "trainer.gradient_clip_val=1.0",
    "callbacks=[default,EarlyStopping]": "callbacks=[default,early_stopping]",
    "strategy=deepspeed_stage_2": "strategy=fsdp topology.devices_per_node=2",
    "strategy=ddp_find_unused_parameters_true": "strategy=ddp strategy.find_unused_parameters=true",
    "logger=wandblogger": "pip install 'leyden[wandb]'",
    "logger=tensorboard": "logger=default",
    # Keras
    "epochs=3": "trainer.max_epochs=3",
    "validation_split=0.1": "dataset.val_fraction=0.1",
    "strategy=mirrored": "strategy=ddp",
    "optimizer=rms": "optimizer=rmsprop",
    "patience=3": "callbacks=[default,early_stopping] callbacks.early_stopping.patience=3",
    "mixed_precision=mixed_bfloat16": "trainer.precision=bf16-mixed",
    # timm
    "lr=0.1": "optimizer.lr=0.1",
    "opt=adam": "optimizer=adam",
    "sched=cosine": "schedule=cosine",
    "model=mlp drop=0.1": "model.dropout=0.1",
    "smoothing=0.1": "task.label_smoothing=0.1",
    "workers=1": "dataset.num_workers=1",
    "amp=true": "trainer.precision=bf16-mixed",
    "model_ema=true": "callbacks=[default,ema]",
    "data_dir=photos": "dataset=image_folder dataset.root=photos",
    # Hugging Face
    "learning_rate=0.1": "optimizer.lr=0.1",
    "num_train_epochs=3": "trainer.max_epochs=3",
    "per_device_train_batch_size=32": "batch_size=32",
    "warmup_steps=10": "schedule.warmup_steps=10",
    "logging_steps=10": "trainer.log_every_n_steps=10",
    "output_dir=runs/a": "hydra.run.dir=runs/a",
    "bf16=true": "trainer.precision=bf16-mixed",
    "resume_from_checkpoint=a.ckpt": "leyden resume a.ckpt",
    "deepspeed=ds.json": "strategy=fsdp topology.devices_per_node=2",
    # torchrun, Slurm, Horovod
    "nproc_per_node=4": "topology.devices_per_node=4 strategy=ddp",
    "nnodes=2": "topology.nodes=2 topology.launcher=node strategy=ddp",
    "gpus=4": "topology.devices_per_node=4 strategy=ddp",
    "gpus=3": "topology.devices_per_node=3 batch_size=63 strategy=ddp",
    "partition=gpu": "topology.slurm.partition=gpu",
    "horovod=true": "strategy=ddp",
    # Ultralytics and others
    "imgsz=32": "dataset.image_size=32",
    "bs=32": "batch_size=32",
    "device=cpu": "topology.device.kind=cpu",
    "resume=true": "leyden resume",
    "project=mine": "pip install 'leyden[wandb]'",
    "report_to=wandb": "pip install 'leyden[wandb]'",
    "mlflow=true": "pip install 'leyden[mlflow]'",
    "wd=0.1": "optimizer.weight_decay=0.1",
    "arch=resnet18": "model=resnet18",
    "data=photos": "dataset=image_folder dataset.root=photos",
    # near spellings, and values that do not fit
    "trainer.max_epoch=3": "trainer.max_epochs=3",
    "trainer.max_epoch=three": "",
    "epochs=three": "",
    "gpus=many": "topology.devices_per_node=1",
    "arch=quantum": "",
    "data_dir=nowhere": "",
    # what nobody can know
    "frobnicate=3": "",
    "strategy=quantum": "",
    "logger=papyrus": "",
    "trainer.reload_dataloaders=1": "",
}


@pytest.mark.parametrize(
    "command",
    # the first sixteen are Lightning's
    [pytest.param(word, marks=pytest.mark.slow if n >= 16 and n % 4 else []) for n, word in enumerate(TRANSLATED)],
)
def test_remedy_works_or_is_not_given(command: str, here: Path, composer: Composer) -> None:
    typed = command.split()
    with pytest.raises(ConfigError) as caught:
        composer.run(typed)
    (problem,) = caught.value.problems
    assert problem.remedy.startswith(TRANSLATED[command]), problem.remedy
    assert problem.remedy or not TRANSLATED[command]
    if not TRANSLATED[command]:
        assert not problem.remedy
    for remedied in ways_out(typed, problem):
        composer.validate_run(composer.compose_with_hydra(remedied), remedied)
    assert not list(here.glob("outputs*"))


def ways_out(typed: list[str], problem: Problem) -> list[list[str]]:
    """Command lines with a remedy in place of the mistake; none where it is prose, which must name a command."""
    ways = [way.split() for way in problem.remedy.split(" or ")] if problem.remedy else []
    if not all(_OVERRIDE.fullmatch(word) for way in ways for word in way):
        assert re.search(r"\b(leyden|pip install) ", problem.remedy), problem.remedy
        return []
    mistake = problem.where.removeprefix("override '").removesuffix("'")
    assert mistake in typed
    return [[*(o for o in typed if o != mistake), *way] for way in ways]


def test_table_is_long_enough() -> None:
    assert len(TRANSLATED) >= 60


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("--lr 0.1", "optimizer.lr=0.1"),
        ("--trainer.max_epochs=3", "trainer.max_epochs=3"),
        ("--epochs 3", "trainer.max_epochs=3"),
        ("--batch-size 32", "batch_size=32"),
        ("--gpus 2", "topology.devices_per_node=2 strategy=ddp"),
        ("--fp16", "trainer.precision=bf16-mixed"),
        ("--multi-run", "--multirun"),
        ("--wandb", "pip install 'leyden[wandb]'"),
        ("--frobnicate", "leyden --help"),
    ],
)
def test_flags_of_other_tools(command: str, remedy: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    told = capsys.readouterr().err
    assert f"try: {remedy}" in told, told
    if _OVERRIDE.match(remedy):
        assert main([*remedy.split(), "--cfg", "job"]) == 0


def test_a_remedy_that_is_too_long_for_a_file_is_shown(here: Path, composer: Composer) -> None:
    with pytest.raises(ConfigError, match="the value cannot be put there"):
        composer.compose_with_hydra([f"hydra.run.dir={{_target_:{'9' * 300}}}"])


def test_on_a_gpu_float16_stays(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("leyden.trainer.hardware.topology", "leyden.trainer.compose.checks"):
        monkeypatch.setattr(f"{module}.gpu_count", lambda: 1)
    with pytest.raises(ConfigError) as caught:
        Composer().run(["fp16=true"])
    assert caught.value.problems[0].remedy == "trainer.precision=16-mixed"
    assert topology.gpu_count() == 1


def test_another_value_than_the_users_is_explained(here: Path, composer: Composer) -> None:
    with pytest.raises(ConfigError) as caught:
        composer.run(["fp16=true"])
    assert "16-mixed: float16 needs a GPU" in caught.value.problems[0].text


def test_a_second_mistake_does_not_hide_the_remedy_of_the_first(here: Path, composer: Composer) -> None:
    with pytest.raises(ConfigError) as caught:
        composer.run(["epochs=3", "batch_size=0"])
    assert caught.value.problems[0].remedy == "trainer.max_epochs=3"


def test_choices_name_groups_that_there_are(composer: Composer) -> None:
    for group, choices in CHOICES.items():
        options = composer.loader.get_group_options(group)
        assert options, group
        assert not set(choices) & set(options), group


def test_words_are_lower_case_and_looked_up_with_dashes() -> None:
    assert find_equivalent("Batch-Size-Per-GPU".replace("Size", "size"), "8") == find_equivalent(
        "batch_size_per_gpu", "8"
    )
    assert find_equivalent("frobnicate", "8") is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [("epochs", None), ("max_epoch", "max_epochs"), ("ckpt", None), ("dpd", "ddp"), ("Sdg", "sgd"), ("ds", None)],
)
def test_only_near_spellings_are_near(name: str, meant: str | None) -> None:
    assert nearest(name, ["max_epochs", "min_epochs", "python_path", "interval", "ddp", "sgd", "sd"]) == meant


def test_values_are_spelled_as_overrides_take_them() -> None:
    values = (None, True, [1, "a"], {"a": 1}, "it's", "a b")
    assert [spell_value(v) for v in values] == ["null", "true", "[1,a]", None, "'it\\'s'", "'a b'"]
