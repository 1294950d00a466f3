"""Pictures of what the network has learned so far, every few epochs."""

from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from ...base import rng
from ...base.atomic_file import atomic_file
from ...base.errors import CannotStart, Problem
from ...base.heartbeat import CALLBACKS, heartbeat
from ...base.log import log
from ...base.paths import shorten_path
from ...config.schema import Config, Target
from ...config.strategy_class import declarations_before_import
from ...core.batch import BadSamples
from ...core.callback_contract import CallbackContract
from ...core.eval_weights import EvalWeights
from ...core.loggers.calls import call_logger
from ...core.loggers.contract import LoggerContract
from ...core.network.trained_network import network_of
from ...core.state import RunState

FOLDER = "inspect"
"""Folder of the newest pictures, in the run folder."""


class Inspection(CallbackContract):
    """What `leyden inspect RUN` draws, at the end of every n-th epoch and of the last one.

    Pictures go to the loggers as `inspect/NAME` and, the newest, to RUN/inspect/NAME.png; histograms of weights,
    gradients and feature maps go to the loggers that take values. The network has the weights that evaluation uses; the
    gradients are those of the newest step, of this worker where workers do not average them. The first worker
    draws, from its share of the validation images, and the others wait. The random generators stay as they are, so that
    a training with and without pictures is the same.

    Args:
        every_n_epochs: epochs from one inspection to the next.
        images, layers, maps, explained, mistakes, batch_size: as in conf/inspect.yaml.

    Raises:
        ValueError: a number out of range.
    """

    def __init__(
        self, every_n_epochs: int, images: int, layers: int, maps: int, explained: int, mistakes: int, batch_size: int
    ):
        self.every_n_epochs = every_n_epochs
        self.settings = {
            "images": images, "layers": layers, "maps": maps, "explained": explained, "mistakes": mistakes,
            "batch_size": batch_size,
        }  # fmt: skip
        for problem in _out_of_range("callbacks.inspect", {"every_n_epochs": every_n_epochs, **self.settings}):
            raise ValueError(f"{problem.key}={problem.value} {problem.text}")
        self._said = False

    @override
    @staticmethod
    def validate_config(config: Config, key: str, node: Target) -> Iterator[Problem]:
        """What cannot work, before anything starts."""
        yield from _out_of_range(key, node.arguments)
        later = f"~callbacks.{key.rpartition('.')[2]}, and later leyden inspect RUN"
        declared = declarations_before_import(config.strategy.target)
        if declared is not None and declared.divides_parameters:
            yield Problem(key, "looks at a whole network, of which a worker here has a part", node.target, later)
        for name in ("compile", "activation_checkpointing"):
            if getattr(config.trainer, name):
                text = f"looks at what passes between layers, which trainer.{name} takes apart"
                yield Problem(key, text, node.target, later)

    @override
    def on_epoch_end(self, state: RunState) -> None:
        """Collective: strategies may exchange weights for evaluation."""
        last = state.step >= state.total_steps or state.stop_reason is not None
        if state.step_in_epoch or not (last or state.epoch % self.every_n_epochs == 0):
            return
        state.contract.flush_pending_updates(state.task)
        with EvalWeights(state), heartbeat.phase(CALLBACKS, "inspection"):
            if state.fabric.is_global_zero:
                self._inspect(state)

    def _inspect(self, state: RunState) -> None:
        # not at the top: the first step does not wait for pictures
        from ...diagnostics.inspection.report.distributions import gradients
        from ...diagnostics.inspection.report.report import report
        from ...diagnostics.inspection.report.subject import Subject

        device, data = state.fabric.device, state.data
        generators = rng.capture(device)
        try:
            names = data.class_names or []
            subject = Subject(state.task, data, names, device, self.settings["images"], self.settings["batch_size"])
            for found in report(subject, self.settings):
                heartbeat.beat()
                self._keep(state, found)
            for found in gradients(network_of(state.task)):
                self._keep(state, found)
        except (CannotStart, BadSamples) as error:
            self._say(f"callbacks.inspect draws nothing: the run {error}")
        finally:
            rng.restore(generators, device)

    def _keep(self, state: RunState, found: Any) -> None:
        from ...diagnostics.inspection.report.findings import Distribution, Picture

        if isinstance(found, Distribution):
            for logger in state.fabric.loggers:
                if isinstance(logger, LoggerContract):
                    call_logger(logger, logger.log_values, f"inspect/{found.name}", found.values, state.step)
        elif isinstance(found, Picture):
            state.report_image(f"inspect/{found.name}", found.image)
            folder = state.run_dir / FOLDER
            try:
                folder.mkdir(exist_ok=True)
                with atomic_file(folder / f"{found.name}.png", "wb") as stream:
                    found.image.save(stream, format="PNG")
            except OSError as error:
                self._say(f"callbacks.inspect: {shorten_path(folder)}: {error}")

    def _say(self, text: str) -> None:
        """Warn, once in a run."""
        if not self._said:
            log.warning(text)
        self._said = True


def _out_of_range(key: str, arguments: dict[str, Any]) -> Iterator[Problem]:
    for name, value in arguments.items():
        least = 0 if name in ("layers", "explained", "mistakes") else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            yield Problem(
                f"{key}.{name}", f"must be a whole number of at least {least}", value, f"{key}.{name}={least}"
            )
