"""Views of each image over which `leyden eval --crops --scales` averages; workers get them by their environment."""

import os
import re
from typing import Any, NamedTuple

from ..base.errors import refuse
from .locate import locate

VARIABLE = "LEYDEN_EVALUATION_VIEWS"


class EvaluationViews(NamedTuple):
    """What is evaluated in place of one centre crop."""

    crops: int
    """1: the centre; 5: the corners as well; 10: these and their mirror images."""
    scales: tuple[int, ...]
    """Pixels of the shorter side before crops are cut; (): that of the dataset."""

    @property
    def per_image(self) -> int:
        return self.crops * max(1, len(self.scales))

    @classmethod
    def of_flags(cls, crops: int | None, scales: str | None, dataset: Any) -> "EvaluationViews | None":
        """What the flags ask for; None: nothing but the usual.

        Raises:
            ConfigError: a wrong value, or a dataset that has no such views.
        """
        if crops is None and scales is None:
            return None
        if scales is not None and not re.fullmatch(r"[1-9]\d{0,4}(,[1-9]\d{0,4})*", scales):
            raise refuse("--scales", "must be pixels of the shorter side, with commas between them", scales,
                         "--scales 224,256,288")  # fmt: skip
        if not hasattr(locate(dataset.target), "evaluation_views"):
            flag, value = ("--crops", crops) if crops is not None else ("--scales", scales)
            text = "needs a dataset that cuts crops out of larger images (evaluation_views), as image_folder does"
            raise refuse(flag, text, value, f"leave out {flag}")
        return cls(crops or 1, tuple(map(int, scales.split(","))) if scales else ())

    def check(self, crop: int, multi_label: bool) -> None:
        """Raise ValueError if a scale is smaller than the crop, or images have no softmax to average."""
        if multi_label:
            raise ValueError(
                "--crops and --scales average a softmax, and these images have several labels: leave them out"
            )
        if self.scales and min(self.scales) < crop:
            raise ValueError(f"--scales: {min(self.scales)} is smaller than the crop of {crop} pixels (dataset.crop)")

    @property
    def variable(self) -> str:
        """The value of the environment variable."""
        return f"{self.crops}:{','.join(map(str, self.scales))}"

    @classmethod
    def requested_views(cls) -> "EvaluationViews | None":
        """Those of this process's environment."""
        crops, _, scales = os.environ.get(VARIABLE, "").partition(":")
        return cls(int(crops), tuple(map(int, filter(None, scales.split(","))))) if crops else None
