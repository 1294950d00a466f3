"""A run's job: its way to other processes, and the config that the command makes it of."""

import ast
from pathlib import Path

import pytest
from runs import TINY

import leyden.trainer
from leyden.trainer.compose.composer import Composer
from leyden.trainer.config.job import JobSpec, freeze
from leyden.trainer.config.schema import load

TRAINER = Path(leyden.trainer.__path__[0])
NO_JOB = {
    "config/job.py load",
    "entrypoints/start.py start",  # makes the job
    "entrypoints/slurm_requeue.py main",  # reads no config
    "config/target_policy/untrusted_runs.py refuse_foreign",  # before there is one
    "engine/inference/predictor.py __init__",  # no process is started
}
BELOW = ("runs", "hardware", "base")
"""Rooms that know no config."""


@pytest.mark.parametrize("checkpoint", [None, Path("/runs/a b/checkpoints/last.ckpt")])
@pytest.mark.parametrize("verb", ["train", "resume", "eval"])
def test_arguments_name_the_job(here: Path, verb: str, checkpoint: Path | None) -> None:
    freeze(here, Composer().run(list(TINY)).values)
    job = JobSpec.load(here, verb, checkpoint)
    assert JobSpec.from_argv(job.to_argv()) == job
    assert JobSpec.from_argv([str(here)]) == JobSpec(job.config, here)


@pytest.mark.parametrize(
    "options",
    [
        ["+task.root=data", "hydra.run.dir=run"],
        ["tags=['${hydra:runtime.output_dir}']", "hydra.run.dir=run"],
        ["hydra.run.dir='numbered/${now:%Y}'"],
        ["strategy._target_=of_test_job.Mine", "hydra.run.dir=run"],
    ],
    ids=["relative root", "output_dir", "numbered folder", "a strategy of the user's"],
)
def test_the_config_that_is_frozen_is_the_one_that_is_read(here: Path, options: list[str]) -> None:
    (here / "data").mkdir()
    (here / "of_test_job.py").write_text(
        "from leyden.trainer.strategies.single import Single\nclass Mine(Single): pass\n"
    )
    composer = Composer()
    run = composer.run([*TINY, *(options if "task.root" not in options[0] else options[1:])])
    values = composer.freeze_in(run, here / "run")
    if "task.root" in options[0]:
        values["task"]["root"] = "data"
    (here / "run").mkdir()
    assert freeze(here / "run", values) == load(here / "run")


def test_no_other_function_takes_the_parts_of_a_job() -> None:
    found = set()
    for file in TRAINER.rglob("*.py"):
        place = file.relative_to(TRAINER)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and place.parts[0] not in BELOW:
                names = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
                if "run_dir" in names and names & {"verb", "checkpoint"}:
                    found.add(f"{place} {node.name}")
    assert found == NO_JOB
