"""Verbs for runs and machines that train nothing: status, stop, doctor, view, schema, topology."""

import argparse
import json
import os
import sys
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
    from ..config.compose import Composer
    from ..diagnostics.doctor.freeze import frozen_doctor_run

    config, claimed = frozen_doctor_run(Composer(parsed.config_dir), parsed.words, parsed.write)
    if config.launcher == "node":
        return print_node_command(config, claimed.folder)
    try:
        return start_run(config, claimed.folder, "train", None)
    except ConfigError:
        claimed.release()
        raise


def view(parsed: argparse.Namespace) -> int:
    if len(parsed.words) > 1:
        raise refuse("view", "takes one folder", " ".join(parsed.words), f"leyden view {parsed.words[0]}")
    folder = Path(parsed.words[0] if parsed.words else "outputs")
    if not folder.is_dir():
        raise refuse("view", "there is no such folder", str(folder), "leyden view FOLDER of a run, a sweep or all runs")
    # -P: TensorBoard tries to import packages that may lie in the current folder, which may be somebody else's
    command = [sys.executable, "-P", "-m", "tensorboard.main", "--logdir", str(folder), "--host", "localhost"]
    port = ["--port", str(parsed.port)] if parsed.port is not None else []
    sys.stdout.flush()
    # exec: a signal to the command then ends TensorBoard.
    os.execv(sys.executable, [*command, *port])


def schema(parsed: argparse.Namespace) -> int:
    from ..config.reference.json_schema import editor_schema

    print(json.dumps(editor_schema(parsed.words[0] if parsed.words else None), indent=2))
    return 0


def topology(parsed: argparse.Namespace) -> int:
    from ..hardware.discovery.machine import discovered
    from ..hardware.discovery.to_yaml import as_topology

    if parsed.words:
        raise refuse("topology", "prints the machine that it runs on, and takes no words", " ".join(parsed.words),
                     f"leyden topology={parsed.words[0]} to train on a topology")  # fmt: skip
    print(as_topology(discovered()), end="")
    return 0
