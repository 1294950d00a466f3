"""`leyden inspect RUN`: what a network has learned, as PNG files and in TensorBoard."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.atomic_file import atomic_file
from ...base.errors import refuse
from ...base.paths import absolute, exists, shorten_path
from ...config.target_policy.untrusted_runs import other_owner
from ...runs.frozen import owners_of
from ...runs.lease_record import is_alive, lease_of

if TYPE_CHECKING:
    from ...components.loggers.tensorboard import TensorBoard
    from ...diagnostics.inspection.report.findings import Distribution, Omitted, Picture

FOLDER = "inspect"
"""Folder of the pictures, in the run folder."""


def inspect_run(parsed: argparse.Namespace) -> int:
    from ...api.run import Run
    from ...api.settings import keyed_words, verb_settings

    if parsed.config_dir is not None:
        raise refuse("--config-dir", "goes with inspect augment and data: a run has its config", parsed.config_dir)
    named = [word for word in parsed.words if "=" not in word or exists(word)]
    if len(named) != 1:
        text = "needs augment, data, or a run" if not named else "takes one run at a time"
        raise refuse("inspect", text, " ".join(named) or ..., "leyden inspect outputs/DAY/TIME")
    given, overrides = keyed_words("inspect", [word for word in parsed.words if word not in named])
    settings = verb_settings("inspect", given, may_be_zero=("layers", "explained", "mistakes"))
    run = Run(named[0], *overrides, best=parsed.best)
    lease = lease_of(run.folder)
    if parsed.out is None and lease is not None and is_alive(run.folder, lease):
        raise refuse(
            "RUN", "is running, and its TensorBoard log has one writer", shorten_path(run.folder), "--out FOLDER"
        )
    _ = run.config  # a mistake in the config does not wait for torch
    if parsed.out is None and other_owner(owners_of(run.folder)) is not None:
        raise refuse(
            "RUN", "belongs to another user: nothing is written into it", shorten_path(run.folder), "--out FOLDER"
        )
    out, log_folder = _folders(parsed.out, run.folder)

    # not at the top: neither does one in the words
    from ...api.inspection import inspect_run

    step, log = run.trained.step, None
    for found in inspect_run(run, settings):
        try:
            out.mkdir(exist_ok=True)
            log = log or _log(log_folder)
            _keep(found, out, log, step)
        except OSError as error:
            raise refuse("--out", f"cannot be written: {error}", str(out), "--out FOLDER", executed=True) from error
    if log is not None:
        log.finalize("success")
    print(
        f"{shorten_path(log_folder)}: the same and histograms, in TensorBoard: leyden view {shorten_path(log_folder)}"
    )
    return 0


def _folders(named: str | None, run: Path) -> tuple[Path, Path]:
    """Where the pictures go, and where the event file."""
    if named is None:
        return run / FOLDER, run
    out = absolute(named)
    if not out.parent.is_dir() or (out.exists() and not out.is_dir()):
        raise refuse("--out", "must be a folder, in a folder that exists", named, "--out pictures")
    return out, out


def _log(folder: Path) -> "TensorBoard":
    from ...components.loggers.tensorboard import TensorBoard

    return TensorBoard(str(folder))


def _keep(found: "Picture | Distribution | Omitted", out: Path, log: "TensorBoard", step: int) -> None:
    from ...diagnostics.inspection.report.findings import Omitted, Picture

    if isinstance(found, Omitted):
        print(found.text)
    elif isinstance(found, Picture):
        file = out / f"{found.name}.png"
        with atomic_file(file, "wb") as stream:
            found.image.save(stream, format="PNG")
        log.log_image(f"inspect/{found.name}", found.image, step)
        print(f"{shorten_path(file)}: {found.text}", flush=True)
    else:
        log.log_values(f"inspect/{found.name}", found.values, step)
