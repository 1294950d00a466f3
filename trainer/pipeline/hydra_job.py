"""One of Hydra's jobs whose work others do: its callbacks hear of it before and after."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobRuntime, JobStatus
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from ..compose import set_output_dir, without_hydra


class HydraJob:
    """A trial as Hydra's run_job would treat it, if its task could be begun now and ended later.

    Callbacks belong to their job, as under Hydra's other parallel launchers: what one of them notes in itself when its
    job begins is there when that job ends.

    Args:
        master: the sweep's composition.
        number: of the job.
        overrides: the job's own.
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
        """Tell the callbacks."""
        HydraConfig.instance().set_config(self.config)
        self._callbacks.on_job_start(config=self.config, task_function=self._task)

    def end(self, value: Any) -> JobReturn:
        """Tell the callbacks what has come of it. Returns what a launcher returns."""
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
def hydras_state_kept() -> Iterator[None]:
    """What Hydra takes for the present job is what it was before."""
    before = HydraConfig.instance().cfg
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def environment_of(jobs: Sequence[HydraJob]) -> dict[str, str]:
    """What hydra.job.env_set asks for, the same for all of them."""
    values = OmegaConf.to_container(jobs[0].config.hydra.job.env_set, resolve=True)
    assert isinstance(values, dict)
    return {str(name): str(value) for name, value in values.items()}
