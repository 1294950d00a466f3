"""Work and memory of a config's training step, counted on fake tensors. Imports torch.

Network, task and optimizer are run through one step of one device, forward, backward and update, on tensors that have
shapes and no values: no memory, no data, no process group.
"""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from ..base.errors import CannotStart, Problem
from ..config.schema import Config
from ..config.targets import make_importable
from ..hardware.topology import device_kind
from .fake_step import Recorder, step
from .fake_training import MEASURE, FakeTraining, fake_training
from .quantities import PeakMemory, StepWork
from .torch_compat import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)


class StepCounter:
    """Counts the training step of a config for any number of batches.

    The training is that of one device with the whole network, whatever the strategy; `trainer.compile` is not applied.

    Raises:
        CannotStart: the network cannot be built, or the shape of its images is unknown before they are read.
    """

    def __init__(self, config: Config):
        make_importable(config)
        self.config = config
        # a fallback would run the CPU's kernel, in as much memory as the training's
        self._fakes = FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True)
        with self._context():
            self._training: FakeTraining = fake_training(config)

    def count(self, batch: int) -> tuple[StepWork, PeakMemory]:
        """Work and peak memory of a step.

        Args:
            batch: samples of this device in a step.

        Raises:
            CannotStart: the network, the task or the optimizer cannot be run on fake tensors.
        """
        recorder = Recorder(device_kind(self.config.topology) == "cpu")
        try:
            with self._context():
                return step(self._training, batch, recorder)
        except CannotStart:
            raise
        except Exception as error:  # of a user-provided class, which may raise anything
            raise CannotStart(self._problem(error, recorder.operation)) from error

    def _problem(self, error: Exception, operation: str) -> Problem:
        model = self.config.model
        name = (model or self.config.task).target.rpartition(".")[2]
        text = str(error).partition("\n")[0] or type(error).__name__
        if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
            text = f"{error.func} depends on values, and a plan has shapes alone"
        elif isinstance(error, UnsupportedOperatorException):
            text = f"{error.func} cannot be run on tensors without values"
        elif operation:
            text = f"cannot be run on tensors without values, at {operation}: {text}"
        return Problem("task" if model is None else "model", text, name, MEASURE, executed=True)

    @contextmanager
    def _context(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(self._fakes)
            yield


def count(config: Config, batch: int) -> tuple[StepWork, PeakMemory]:
    """Work and peak memory of one training step of one device, as `StepCounter.count`."""
    return StepCounter(config).count(batch)
