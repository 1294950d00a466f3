"""Hydra job whose work other processes do: Hydra's callbacks are called before and after."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobRuntime, JobStatus
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from ..compose.composer import set_output_dir, without_hydra
from ..compose.hydra_compat import Callbacks


class HydraJob:
    """Hydra's `run_job` in two halves, since the jobs of a hopping run begin together and end together.

    Each job has its own copies of the callbacks, as under Hydra's other parallel launchers: state that one sets at the
    beginning of its job is there at the end of that job.

    Args:
        master: composition of the sweep.
        number: of the job.
        overrides: of the job.
    """

    def __init__(
        self, context: HydraContext, master: DictConfig, number: int, overrides: Sequence[str], task: TaskFunction
    ):
        self.config = context.config_loader.load_sweep_config(master, list(overrides))
        with open_dict(self.config):
            self.config.hydra.job.id = self.config.hydra.job.num = number
        HydraConfig.instance().set_config(self.config)
        self.folder = Path(str(self.config.hydra.sweep.dir)) / str(self.config.hydra.sweep.subdir)
        set_output_dir(self.config, self.folder)
        self._task = task
        self._callbacks = Callbacks()
        self._callbacks.callbacks = [copy(callback) for callback in context.callbacks.callbacks]

    def begin(self) -> None:
        """Call `on_job_start`."""
        HydraConfig.instance().set_config(self.config)
        self._callbacks.on_job_start(config=self.config, task_function=self._task)

    def end(self, value: Any) -> JobReturn:
        """Call `on_job_end`. Returns the job's result for Hydra."""
        HydraConfig.instance().set_config(self.config)
        hydra_cfg: Any = deepcopy(HydraConfig.instance().cfg)
        returned = JobReturn(
            overrides=[str(override) for override in self.config.hydra.overrides.task],
            cfg=without_hydra(self.config),
            hydra_cfg=hydra_cfg,
            working_dir=os.getcwd(),
            task_name=JobRuntime.instance().get("name"),
            status=JobStatus.COMPLETED,
        )
        returned.return_value = value
        self._callbacks.on_job_end(config=self.config, job_return=returned)
        return returned


@contextmanager
def preserve_hydra_config() -> Iterator[None]:
    """Restore Hydra's global config at the end."""
    before = HydraConfig.instance().cfg
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def job_environment(jobs: Sequence[HydraJob]) -> dict[str, str]:
    """Environment variables of hydra.job.env_set, the same for all jobs."""
    values = OmegaConf.to_container(jobs[0].config.hydra.job.env_set, resolve=True)
    assert isinstance(values, dict)
    return {str(name): str(value) for name, value in values.items()}
