"""What tests of the pipeline put in place of Leyden's own parts."""

import os
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.utils import get_original_cwd, to_absolute_path
from omegaconf import OmegaConf
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
    """Hydra's own callback: writes down the jobs that it is told of, and what Hydra's helpers say meanwhile."""

    def __init__(self, file: str):
        self._file = Path(file)
        self._number = -1
        OmegaConf.register_new_resolver("shout", lambda word: f"{word}!", replace=True)

    def on_multirun_start(self, config: Any, **kwargs: Any) -> None:
        self._tell("multirun starts")

    def on_job_start(self, config: Any, **kwargs: Any) -> None:
        self._number = config.hydra.job.num
        assert HydraConfig.get().job.num == self._number
        assert get_original_cwd() == os.getcwd()
        assert to_absolute_path("foo/bar") == f"{os.getcwd()}/foo/bar"
        assert Path(HydraConfig.get().runtime.output_dir).is_dir()
        self._tell(f"{self._number} starts, {os.environ['LEYDEN_WORD']}, done: {self._is_done(config)}")

    def on_job_end(self, config: Any, job_return: Any, **kwargs: Any) -> None:
        assert HydraConfig.get().job.num == config.hydra.job.num
        assert self._number == config.hydra.job.num, "each job has a callback of its own"
        self._tell(f"{self._number} ends, {os.environ['LEYDEN_WORD']}, done: {self._is_done(config)}")

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        self._tell("multirun ends")

    def _is_done(self, config: Any) -> bool:
        return Path(config.hydra.runtime.output_dir, "summary.json").exists()

    def _tell(self, line: str) -> None:
        with open(self._file, "a") as file:
            file.write(line + "\n")


class Hears:
    """Leaves a word of the environment in the run's folder."""

    def on_fit_end(self, state: Any) -> None:
        (state.run_dir / "heard").write_text(os.environ["LEYDEN_WORD"])


class Speaks:
    """Says something at the end of each epoch, in its own way."""

    def on_epoch_end(self, state: Any) -> None:
        # in one piece: where Python's output is not buffered, print would write the end of the line by itself
        sys.stdout.write(f"half done\rword {state.config.seed} {state.epoch} [red]\x1b[2J\n")
        sys.stdout.flush()
