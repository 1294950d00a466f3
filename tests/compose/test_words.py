"""Commands as users of other tools type them: each is refused with Leyden's words for it, and these words work."""

import re
import shlex
from pathlib import Path

import pytest
from remedied import shown, works

from leyden.trainer.cli.main import main
from leyden.trainer.compose.composer import Composer
from leyden.trainer.compose.known_names import find_value


@pytest.fixture
def here(here: Path) -> Path:
    for name in ("cat", "dog"):
        (here / "photos" / name).mkdir(parents=True)
    (here / "c.yaml").write_text("defaults: [train, _self_]\nseed: 3\n")
    return here


# the command, and remedies (or, without =, texts) that it must get, one for each mistake in it
WORDS = {
    # another remedy than the meant one was given
    "device=0,1 batch=16": ["topology.devices_per_node=2 strategy=ddp", "batch_size=16"],
    "gpus=0,1": ["topology.devices_per_node=2 strategy=ddp"],
    "schedule.warmup_epochs=5": ["schedule.warmup_steps=5ep"],
    "warmup_epochs=5": ["schedule.warmup_steps=5ep"],
    "-m 'optimizer.lr=[0.1,0.01]'": ["leyden -m optimizer.lr=0.1,0.01"],
    "'epochs=[1,2]' seed=3": ["leyden -m trainer.max_epochs=1,2 seed=3"],
    "'lr=[0.1,0.2]'": ["leyden -m optimizer.lr=0.1,0.2"],
    "lr=0.1,0.2": ["leyden -m optimizer.lr=0.1,0.2"],
    "'model=[lenet5,mlp]'": ["leyden -m model=lenet5,mlp"],
    "-m optimizer.lr=0.1, 0.01 seed=3": ["leyden -m optimizer.lr=0.1,0.01 seed=3"],
    "model=mlp model.hidden=[8, 9]": ["leyden model=mlp 'model.hidden=[8,9]'"],
    "--config-name=c": ["--config-dir . --config-name c"],
    "--config-name=trian": ["--config-name train"],
    "--config c.yaml": ["--config-dir . --config-name c"],
    "-c c.yaml": ["--config-dir . --config-name c"],
    "c.yaml": ["--config-dir . --config-name c"],
    "--cfg jobs": ["--cfg job"],
    "dataset=imagefolder dataset.data_dir=photos": ["dataset=image_folder dataset.root=photos"],
    "dataset=imagefolder dataset.data_dir=gone": [
        "dataset.root=gone: there is no such file", "needs: dataset=image_folder dataset.root=PATH"],
    "dataset=image_folder dataset.path=photos": ["dataset.root=photos"],
    "dataset=image_folder dataset.image_size=64": ["needs: dataset.root=VALUE"],
    "model=timm model.architecture=resnet50": ["model.name=resnet50"],
    "train photos": ["dataset=image_folder dataset.root=photos"],
    "model=ViT-B/16": ["model=vit_base"],
    "topology=k8s": ["topology=kubernetes"],
    "logger=null": ["logger=none"],
    "callbacks=null": ["callbacks=none"],
    "eval mine mine": ["leyden eval mine"],
    "+callbacks=ema": ["callbacks=[default,ema]"],
    "+callbacks@callbacks=ema": ["callbacks=[default,ema]"],
    "+logger=none": ["logger=[default,none]"],
    "+model=mlp": ["model=mlp"],
    "model=resnet50d": ["model=timm model.name=resnet50d"],
    "model=resnet152": ["model=resnet50 model.depth=152"],
    "optimizer=torch.optim.NAdam": ["optimizer._target_=torch.optim.NAdam"],
    "optimizer=radam": ["optimizer._target_=torch.optim.RAdam"],
    "logger=[lightning.pytorch.loggers.CSVLogger]": ["+logger.own._target_=lightning.pytorch.loggers.CSVLogger"],
    "schedule=exponential": ["schedule._target_=torch.optim.lr_scheduler.ExponentialLR"],
    "task=focal": ["task.loss=focal"],
    "model=resnet50 drop_path=0.1": ["model.drop_path=0.1"],
    "--model vit_small --drop-path 0.1": ["model=vit_small", "model.drop_path=0.1"],
    # no remedy was given
    "fit model=mlp": ["leyden model=mlp"],
    "fit lr=0.1 epochs=3": ["is leyden train here", "optimizer.lr=0.1", "trainer.max_epochs=3"],
    "test mine": ["leyden eval mine"],
    "classify train": ["leyden"],
    "detect train": ["neither detects nor segments"],
    "optimizer.lr = 0.1": ["optimizer.lr=0.1"],
    "lr: 0.1": ["optimizer.lr=0.1"],
    "--model.learning_rate=0.1": ["optimizer.lr=0.1"],
    "model.learning_rate=0.1": ["optimizer.lr=0.1"],
    "--pretrained": ["needs: model.pretrained=timm:NAME.TAG"],
    "model=resnet50.a1_in1k": ["model=timm model.name=resnet50 model.pretrained=timm:resnet50.a1_in1k"],
    "loss=ce": ["task.loss=cross_entropy"],
    "task.loss=crossentropy": ["task.loss=cross_entropy"],
    "loss=mse": ["is of task=reconstruction"],
    "metrics=[accuracy]": ["accuracy is always measured"],
    "steps_per_epoch=10": ["trainer.limit_train_batches=10"],
    "device.kind=mps": ["topology.device.kind=cpu"],
    "max_epochs=-1": ["trainer.max_epochs=1000000"],
    "slurm.time=01:00:00": ["topology.slurm.time_min=60"],
    "topology.slurm.time_min=2-00:00:30": ["topology.slurm.time_min=2881"],
    "trainer.max_time=12:00:00": ["trainer.max_time=00:12:00:00"],
    "num_classes=3": ["the dataset declares its classes"],
    "trainer.tpu_cores=8": ["trains on CUDA GPUs and CPUs"],
    # usual command lines: timm, torchvision, Hugging Face, Lightning, Ultralytics
    "photos --model resnet50 -b 32 -j 4": [
        "dataset=image_folder dataset.root=photos", "model=resnet50", "batch_size=32", "dataset.num_workers=4"],
    "--opt adamw --weight-decay 0.05 --sched cosine --warmup-epochs 5": [
        "optimizer=adamw", "optimizer.weight_decay=0.05", "schedule=cosine", "schedule.warmup_steps=5ep"],
    "--data-dir photos --amp --mixup 0.2": [
        "dataset=image_folder dataset.root=photos", "trainer.precision=bf16-mixed", "augment=mixup"],
    "-a resnet18 --lr 0.1 --data photos": [
        "model=resnet18", "optimizer.lr=0.1", "dataset=image_folder dataset.root=photos"],
    "--do_train --output_dir out --per_device_train_batch_size 8 --learning_rate 2e-5": [
        "`leyden` trains", "hydra.run.dir=out", "batch_size=8", "optimizer.lr=2e-5"],
    "fit --config c.yaml --trainer.max_epochs=3 --model.lr=0.1": [
        "leyden", "--config-dir . --config-name c", "trainer.max_epochs=3", "optimizer.lr=0.1"],
    "classify train data=photos epochs=3 imgsz=64 lr0=0.1": [
        "is not needed", "dataset=image_folder dataset.root=photos", "trainer.max_epochs=3", "1 more: lr0"],
    # all mistakes of a command
    "trainer.max_epoch=3 trainer.max_step=4 batchsize=3 seed=x": [
        "trainer.max_epochs=3", "trainer.max_steps=4", "batch_size=3", "seed = x"],
    "epochs=3 model=lenet6 frob=3 trainer.x=4 bs=3": [
        "trainer.max_epochs=3", "model=lenet5", "... and", "trainer.x, bs"],
}  # fmt: skip


@pytest.mark.thinned(4, 4)
@pytest.mark.parametrize("command", WORDS)
def test_words_of_other_tools_get_leydens(command: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == 2
    printed = capsys.readouterr()
    said = printed.err.replace("\n      ", " ")
    for part in WORDS[command]:
        is_remedy = "is " not in part and re.match(r"leyden|--|\+?[\w.]+=", part)
        assert (f"try: {part}" if is_remedy else part) in said, said
    assert "Traceback" not in said
    for remedy in shown(printed.err):
        assert works(remedy), remedy
    assert not printed.out
    assert not (here / "outputs").exists()


def test_a_verb_without_a_run_names_the_newest(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "outputs/day/time").mkdir(parents=True)
    (here / "outputs/day/time/config.yaml").write_text("seed: 1\n")
    for verb in ("validate", "eval"):
        assert main([verb]) == 2
        assert "try: leyden eval outputs/day/time\n" in capsys.readouterr().err


def test_every_wrong_key_of_a_command_is_a_problem_of_its_own(here: Path) -> None:
    mistakes = [f"trainer.wrong_{n}=1" for n in range(5)]
    problems = Composer().problems_of([*mistakes, "model=mlp", "seed=-1"])
    assert [problem.key for problem in problems] == [*(m.partition("=")[0] for m in mistakes), "seed"]


def test_times_of_slurm() -> None:
    spelled = {"30:00": "30", "01:00:00": "60", "1-00:00:00": "1440", "00:00:01": "1", "60": "", "x": ""}
    assert {time: find_value("topology.slurm.time_min", time)[0] for time in spelled} == spelled
