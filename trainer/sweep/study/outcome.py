"""TrialOutcome of a trial for its study, read from the trial's run folder."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...base.untrusted_file import DamagedFile
from ...runs.summary import read_summary, was_pruned
from ..results import metric_of


@dataclass(frozen=True)
class TrialOutcome:
    """State and value of a trial that has ended."""

    state: Literal["complete", "pruned", "failed"]
    value: float = math.nan
    """Final value of the metric, of a complete trial."""

    @classmethod
    def of_run(cls, folder: Path, metric: str) -> "TrialOutcome":
        """TrialOutcome of the run in a folder. A run without a value of the metric has failed."""
        try:
            summary = read_summary(folder)
        except (OSError, DamagedFile):
            return cls("failed")
        if summary.get("status") != "done":
            return cls("failed")
        if was_pruned(summary):
            return cls("pruned")
        value = metric_of(folder, metric)
        return cls("failed") if math.isnan(value) else cls("complete", value)
