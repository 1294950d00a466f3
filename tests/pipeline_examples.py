"""What tests of the pipeline put in place of Leyden's own parts."""

import os
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from torch import Tensor

from leyden.datasets.digits import Digits


class Watched(Digits):
    """Says which samples of the training set are read, and by which worker."""

    def __init__(self, log: str, split: str, image_size: int):
        super().__init__(split=split, image_size=image_size)
        self._log = Path(log) if split == "train" else None

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self._log is not None:
            with open(self._log, "a") as file:
                file.write(f"{os.environ['RANK']} {index}\n")
        return super().__getitem__(index)


class Fails:
    """One trial raises."""

    def on_step_end(self, state: Any) -> None:
        if state.config.seed == 2 and state.step == 15:
            raise RuntimeError("on purpose")


class Tells(Callback):
    """Hydra's own callback: writes down the jobs that it is told of."""

    def __init__(self, file: str):
        self._file = Path(file)

    def on_job_start(self, config: Any, **kwargs: Any) -> None:
        self._tell(f"start {config.hydra.job.num}")

    def on_job_end(self, config: Any, job_return: Any, **kwargs: Any) -> None:
        self._tell(f"end {config.hydra.job.num} {job_return.return_value}")

    def _tell(self, line: str) -> None:
        with open(self._file, "a") as file:
            file.write(line + "\n")
