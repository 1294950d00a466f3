"""Verbs that train no run: plan, find, status, stop, doctor, bench, inspect, prepare, manifest, view, ..."""

import argparse
import json
from pathlib import Path

from ..base.errors import ConfigError, refuse
from .train_verbs import print_node_command, start_run


def status(parsed: argparse.Namespace) -> int:
    from .status import print_statuses

    return print_statuses(parsed.words, parsed.json)


def stop(parsed: argparse.Namespace) -> int:
    from .stop import stop_run

    if len(parsed.words) != 1:
        text = "needs the folder of a run or of a sweep" if not parsed.words else "takes one run or sweep at a time"
        raise refuse("stop", text, " ".join(parsed.words) or ..., "leyden stop outputs/DAY/TIME")
    return stop_run(parsed.words[0])


def doctor(parsed: argparse.Namespace) -> int:
    from ..compose.composer import Composer
    from ..compose.doctor_run import freeze_doctor_run, training_freezer
    from ..config.job import JobSpec
    from ..diagnostics.doctor.training.run import START, examine_training, plan_training, split

    composer = Composer(parsed.config_dir)
    words, cases = split(parsed.words) if parsed.train else (parsed.words, [])
    config, claimed = freeze_doctor_run(composer, words, parsed.write)
    if parsed.train:
        topology = [word for word in words if not word.startswith("hydra.")]
        plan_training(training_freezer(composer), config, claimed.folder, topology, cases)
    if config.launcher == "node":
        return print_node_command(config, claimed.folder)
    try:
        code = start_run(JobSpec(config, claimed.folder))
    except ConfigError:
        claimed.release()
        raise
    if config.launcher == "slurm":
        return code
    return examine_training(config, claimed.folder, code, lambda folder: (START, str(folder)))


def inspect(parsed: argparse.Namespace) -> int:
    if parsed.words[:1] not in (["augment"], ["data"]):
        from .inspection.run import inspect_run

        return inspect_run(parsed)
    what = parsed.words[0]
    if parsed.best:
        raise refuse("--best", f"chooses a checkpoint, and inspect {what} has no run", remedy="leave out --best")
    if what == "data":
        from .inspection.data_found import print_data

        if parsed.out is not None:
            raise refuse("--out", "goes with pictures, and inspect data prints", parsed.out, "leave out --out")
        return print_data(parsed.words[1:], parsed.config_dir)
    from .inspection.augmented_images import draw_augmented_images

    return draw_augmented_images(parsed.words[1:], parsed.config_dir, Path(parsed.out or "augment.png"))


def prepare(parsed: argparse.Namespace) -> int:
    from .prepare import prepare_shards

    return prepare_shards(parsed.words, parsed.config_dir)


def manifest(parsed: argparse.Namespace) -> int:
    from .manifest import print_manifest

    return print_manifest(parsed.words, parsed.config_dir)


def bench(parsed: argparse.Namespace) -> int:
    if parsed.words[:1] != ["data"]:
        raise refuse("bench", "measures one thing: must be data", " ".join(parsed.words[:1]) or ...,
                     "leyden bench data dataset=... augment=...")  # fmt: skip
    from .data_bench import bench_data

    return bench_data(parsed.words[1:], parsed.config_dir, parsed.json)


def plan(parsed: argparse.Namespace) -> int:
    from .plan.verb import plan_training

    return plan_training(parsed)


def completion(parsed: argparse.Namespace) -> int:
    from .completion.function import print_function

    return print_function(parsed.words)


def find(parsed: argparse.Namespace) -> int:
    from .find.settings import WHAT

    if parsed.words[:1] == ["lr"]:
        from .find.lr import find_lr

        return find_lr(parsed.words[1:], parsed.config_dir)
    if parsed.words[:1] == ["batch_size"]:
        from .find.batch_size import find_batch_size

        return find_batch_size(parsed.words[1:], parsed.config_dir)
    raise refuse("find", f"finds one of {' and '.join(WHAT)}", " ".join(parsed.words[:1]) or ..., "leyden find lr")


def view(parsed: argparse.Namespace) -> int:
    from .view.verb import view_folders

    return view_folders(parsed.words, parsed.port)


def schema(parsed: argparse.Namespace) -> int:
    from ..compose.reference.json_schema import editor_schema

    print(json.dumps(editor_schema(parsed.words[0] if parsed.words else None), indent=2))
    return 0


def topology(parsed: argparse.Namespace) -> int:
    from ..hardware.discovery.machine import discover_machine
    from ..hardware.discovery.to_yaml import as_topology

    if parsed.words:
        raise refuse("topology", "prints the machine that it runs on, and takes no words", " ".join(parsed.words),
                     f"leyden topology={parsed.words[0]} to train on a topology")  # fmt: skip
    print(as_topology(discover_machine()), end="")
    return 0
