"""Verbs that use trained runs: eval, predict, compare, export."""

import argparse

from ..base.errors import refuse
from ..base.paths import shorten_path
from .train_verbs import find_named_run


def evaluate(parsed: argparse.Namespace) -> int:
    from .evaluate import evaluate

    return evaluate(parsed)


def predict(parsed: argparse.Namespace) -> int:
    from .predict import predict

    return predict(parsed)


def compare(parsed: argparse.Namespace) -> int:
    from .compare import compare

    return compare(parsed)


def export(parsed: argparse.Namespace) -> int:
    from ..api.run import Run

    named, overrides = find_named_run(parsed, " --format onnx")
    if parsed.format is None:
        raise refuse("--format", "must be named: safetensors, pt2, onnx or int8", remedy="--format onnx")
    run = Run(named, *overrides, best=parsed.best)
    file, found = run.export_and_check(parsed.format, parsed.out)
    print(f"{shorten_path(file)}: {file.stat().st_size / 1e6:.2f} MB; {found}")
    return 0
