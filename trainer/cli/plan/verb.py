"""The verb: composes and validates as train does, starts nothing, and prints what the training would take."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.errors import ConfigError, refuse
from ...base.paths import absolute, shorten_path
from ...compose.composer import Composer
from ...planner.calibration import MeasuredRun, read_run
from ...planner.kept_plans import keep
from ...planner.plan import needs_no_torch, plan
from .budget import divide_limits, exceeded_limits
from .planned import Planned

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ...compose.composer import ComposedRun

REFUSED = 3
"""Exit code where no plan fits the budget, as of a preflight that refuses."""


def plan_training(parsed: argparse.Namespace) -> int:
    budget, overrides = divide_limits(parsed.words)
    picture = _picture(parsed.out)
    run = vars(parsed)["from"]
    calibrated = None if run is None else read_run(absolute(run))
    composer = Composer(parsed.config_dir, plans=True)
    found = _plan_cells(composer, overrides, calibrated) if parsed.multirun else _alone(composer, overrides, calibrated)
    found.plans.sort(key=lambda each: -each.samples_per_second)
    found.over = {n: over for n, each in enumerate(found.plans) if (over := list(exceeded_limits(each, budget)))}
    if parsed.json:
        print(json.dumps(_as_data(found), indent=2))
    else:
        from .tables import print_plans

        print_plans(found)
    if picture is not None:
        from .chart import write_chart

        write_chart(found.plans, picture)
        if not parsed.json:
            print(shorten_path(picture))
    return REFUSED if found.over and len(found.over) == len(found.plans) else 0


def _picture(out: str | None) -> Path | None:
    if out is None:
        return None
    file = absolute(out)
    if file.suffix != ".png" or not file.parent.is_dir():
        raise refuse("--out", "must be a .png file in a folder that exists", out, "--out plan.png")
    return file


def _alone(composer: Composer, overrides: list[str], calibrated: MeasuredRun | None) -> Planned:
    run = compose_run(composer, overrides)
    found = plan(run.config, calibrated)
    keep(run.config, found)
    return Planned([found])


def _plan_cells(composer: Composer, overrides: list[str], calibrated: MeasuredRun | None) -> Planned:
    """Plans of all cells that can be planned.

    Raises:
        ConfigError: none of them can; that of the first.
    """
    from .sweep import cells

    found = Planned()
    for words, varied in cells(overrides):
        try:
            run = compose_run(composer, words, " ".join(varied))
            found.plans.append(plan(run.config, calibrated, varied))
            keep(run.config, found.plans[-1])
        except ConfigError as error:
            found.refused.append((tuple(varied), error))
    if not found.plans:
        raise found.refused[0][1]
    return found


def compose_run(composer: Composer, words: Sequence[str], context: str = "") -> "ComposedRun":
    """The validated run of these overrides. Its classes are imported only where something is still to be counted:
    what has been counted had valid ones.

    Raises:
        ConfigError: a mistake, or a kind of run that is not planned.
    """
    composition = composer.compose_with_hydra(words)
    _refuse_others(composition)
    try:
        run = composer.validate_run(composition, words, context)
    except ConfigError as error:
        raise composer.with_remedies(error, words) from None
    return run if needs_no_torch(run.config) else composer.validate_classes(run, words, context)


def _refuse_others(composition: "DictConfig") -> None:
    from hydra.types import RunMode

    from ...sweep.hopping_plan import is_pipeline

    if is_pipeline(composition):
        text = (
            "trains the models of a sweep on shared workers, whose makespan is not planned: a plan is of one training"
        )
        raise refuse("hydra/launcher", text, "pipeline", "leyden plan without hydra/launcher, of each model")
    if composition.hydra.mode is RunMode.MULTIRUN:
        raise refuse("hydra.mode", "is a sweep", "MULTIRUN", "leyden plan -m, with the values of the sweep")


def _as_data(found: Planned) -> dict[str, Any]:
    plans = [{**each.as_data(), "over_budget": found.over.get(n, [])} for n, each in enumerate(found.plans)]
    refused = [{"words": words, "error": error.problems[0].sentence()} for words, error in found.refused]
    return {"plans": plans, "refused": refused}
