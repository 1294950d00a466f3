"""`leyden eval`: metrics of a run, on its own data or on other, or of weights; printed and as a JSON file."""

import argparse
from pathlib import Path

from ..base.errors import refuse
from ..base.paths import absolute, exists
from ..compose.evaluated_data import MOVABLE, refuse_data_modules, with_data
from ..compose.provenance import Given
from ..compose.reopen import DEVICE_KIND, change, evaluate_with, open_run, read_changes
from ..config.evaluation_data import OUT, refuse_without_model
from ..config.evaluation_views import EvaluationViews
from ..config.job import JobSpec
from ..entrypoints.fork_server import prepare
from .train_verbs import find_named_run, print_node_command, start_run


def evaluate(parsed: argparse.Namespace) -> int:
    out = None if parsed.out is None else _json_file(parsed.out)
    written = {} if out is None else {OUT: str(out)}
    if parsed.words and all("=" in word and not exists(word) for word in parsed.words):
        from .evaluate_weights import evaluate_weights  # not at the top: Hydra takes a while

        return evaluate_weights(parsed, written)
    named, overrides = find_named_run(parsed)
    kinds, data = _divide_words(overrides, named)
    changes = read_changes(kinds)
    run = open_run(named, [*changes.given, *(Given(each.partition("=")[0].lstrip("+"), each) for each in data)])
    change(run, changes)
    variables = {**with_data(run, data, parsed.config_dir), **written}
    config = run.validate_reopened(prepare)
    refuse_without_model(config)
    refuse_data_modules(run, variables)
    views = EvaluationViews.of_flags(parsed.crops, parsed.scales, config.dataset)
    if (overrides or views or variables) and config.launcher != "local":
        what = "--crops, --scales" if views else "--out" if out else (overrides[0].partition("=")[0])
        text = "is of a command that starts the workers itself, and those of this run start elsewhere"
        raise refuse(what, text, remedy=f"leyden eval {named}")
    if config.launcher == "node":
        return print_node_command(config, run.checkpoint or run.folder, "--eval ")
    with evaluate_with(config.topology.device.kind if kinds else None, views, variables):
        return start_run(JobSpec.load(run.folder, "eval", run.checkpoint))


def _divide_words(overrides: list[str], named: str) -> tuple[list[str], list[str]]:
    """The overrides of the device's kind, and those of the data.

    Raises:
        ConfigError: there are others.
    """
    kinds = [override for override in overrides if override.startswith(f"{DEVICE_KIND}=")]
    data = [override for override in overrides if override.lstrip("+").startswith(("dataset=", "dataset."))]
    others = [override for override in overrides if override not in (*kinds, *data)]
    if not others and not any(override.startswith("dataset=") for override in data):
        others = [override for override in data if override.partition("=")[0] not in MOVABLE]
    if others:
        text = (
            f"a run is evaluated as it was trained; only {DEVICE_KIND}, {' and '.join(MOVABLE)} may differ, "
            "or its whole dataset: dataset=NAME"
        )
        remedy = f"leyden init_from={named} trainer.max_epochs=... for another run"
        if others[0].startswith("dataset."):
            remedy = f"leyden eval {named} dataset=NAME {others[0]}"
        raise refuse(others[0], text, remedy=remedy)
    return kinds, data


def _json_file(named: str) -> Path:
    out = absolute(named)
    if out.suffix.lower() != ".json" or not out.parent.is_dir() or out.is_dir():
        raise refuse("--out", "must be a .json file in a folder that exists", named, "--out metrics.json")
    return out
