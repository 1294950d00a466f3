"""The sweep by Optuna of a folder, composed again as it was: `leyden resume SWEEP` chooses its further trials."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..base.errors import refuse
from ..base.paths import shorten_path
from ..base.printable import printable
from ..base.untrusted_file import DamagedFile
from ..compose.composer import Composer
from ..compose.hydra_node import SWEEPER
from ..config.target_policy.untrusted_runs import is_trusted
from ..runs.folder import SWEEP
from ..runs.study import JOURNAL
from ..runs.untrusted_yaml import read_yaml
from .results import BASIC
from .study.settings import require_optuna
from .sweep import Sweep

N_TRIALS = "hydra.sweeper.n_trials"
"""The one key of a study that its resumption may change."""
_OWN = ("hydra.sweep.dir", "hydra/hydra_logging", "hydra/job_logging", "hydra.mode")
"""Overrides that Leyden adds to those of a sweep."""


def reopen_study(folder: Path, changes: Sequence[str]) -> Sweep | None:
    """The sweep by Optuna of a folder; None for one whose sweeper chooses no further trials.

    Args:
        changes: overrides of N_TRIALS.

    Raises:
        ConfigError: it cannot go on here.
    """
    hydra = _hydra(folder / SWEEP)
    sweeper = hydra["sweeper"]["_target_"]
    if sweeper != SWEEPER or not (folder / JOURNAL).exists():
        if changes:
            raise refuse(N_TRIALS, "is of hydra/sweeper=optuna, and this sweep has another", remedy="leave it out")
        if sweeper not in (BASIC, SWEEPER):
            print(
                f"{printable(sweeper.rpartition('.')[2])} chooses no further trials: for those, a new sweep", flush=True
            )
        return None
    require_optuna()
    _refuse_foreign(folder / JOURNAL)
    _refuse_elsewhere(folder, hydra["runtime"]["cwd"])
    quoted = str(folder).replace("'", "\\'")
    given = [*hydra["overrides"]["hydra"], *hydra["overrides"]["task"]]
    kept = [str(override) for override in given if str(override).partition("=")[0] not in _OWN]
    return Sweep(_composer(hydra), [*kept, f"hydra.sweep.dir='{quoted}'", *changes], goes_on=True)


def _hydra(file: Path) -> Any:
    """Hydra's node of a sweep's file.

    Raises:
        DamagedFile: it does not hold what Hydra writes there.
    """
    content = read_yaml(file)
    try:
        hydra = content["hydra"]
        texts = (hydra["sweeper"]["_target_"], hydra["runtime"]["cwd"], hydra["job"]["config_name"])
        lists = (hydra["overrides"]["hydra"], hydra["overrides"]["task"])
        sources = [(source["provider"], source["path"]) for source in hydra["runtime"]["config_sources"]]
    except (KeyError, TypeError, IndexError) as error:
        raise DamagedFile(file, f"it lacks what Hydra writes there: {error}") from None
    if not all(isinstance(text, str) for text in (*texts, *(part for source in sources for part in source))):
        raise DamagedFile(file, "a name in it is no text")
    if not all(isinstance(given, list) for given in lists):
        raise DamagedFile(file, "its overrides are no list")
    return hydra


def _composer(hydra: Any) -> Composer:
    searched = [source["path"] for source in hydra["runtime"]["config_sources"] if source["provider"] == "command-line"]
    return Composer(searched[0] if searched else None, hydra["job"]["config_name"])


def _refuse_foreign(journal: Path) -> None:
    # some samplers keep their state in it as a pickle; the sweep's folder and file were asked for before
    if journal.stat().st_uid != os.geteuid() and not is_trusted():
        text = "belongs to another user, and a study that goes on reads what they have written"
        raise refuse("SWEEP", text, shorten_path(journal), "the flag --trust, after reading it")


def _refuse_elsewhere(folder: Path, began: str) -> None:
    if Path.cwd() != Path(began):
        text = f"its study began in {began}, and its paths are relative to that folder"
        raise refuse("SWEEP", text, shorten_path(folder), f"cd {began}, and leyden resume {folder}")
