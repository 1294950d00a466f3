"""Draws of modules, tasks and hooks from the process's own generators: reproducible, and named once in the log."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from ..base.errors import join_names
from ..base.log import log
from ..base.rng import mix, set_host_seed
from ..core.batch import Part
from ..core.keyed.dropout import KeyedDropout
from ..core.state import RunState
from .step_module import run_step


class PartDraws:
    """Starts the process's generators anew for each part of a step, so that what draws from them draws the same after a
    resume on as many workers, whatever was drawn before.

    The seed is that of the part's first sample, hence of (seed, epoch, share); without keys it is mixed from (seed,
    epoch, batch, rank). Workers that compute the same samples (spatial) draw apart by their ranks. A part that this
    process has read with draws of its own goes on with them: seeding costs as much as a small network's forward.
    """

    def __init__(self, state: RunState):
        fabric = state.fabric
        self._seed = state.config.seed
        self._rank = fabric.global_rank
        self._same_samples = state.contract.batch_share()[1] == 1
        self._device = fabric.device if fabric.device.type == "cuda" else None

    def begin(self, part: Part, epoch: int, batch_idx: int) -> None:
        """Seed torch's generators of the CPU and of this worker's GPU, Python's and NumPy's."""
        if part.seeded and self._device is None:
            return
        if part.keys is None:
            seed = mix(self._seed, epoch, batch_idx, self._rank)
        else:
            seed = mix(int(part.keys[0]), self._rank if self._same_samples else 0)
        if not part.seeded:
            set_host_seed(seed)
        if self._device is not None:
            torch.cuda.default_generators[self._device.index].manual_seed(seed)


def run_watched(state: RunState, step: str, *arguments: Any) -> Any:
    """`run_step`, saying in the log which modules have drawn from the process's generators meanwhile."""
    with watch_generators(state) as found:
        output = run_step(state, step, *arguments)
    state.drawing = found
    if found:
        log.info("draws of %s depend on the number of workers; a resume on as many repeats them", join_names(found, 8))
    return output


@contextmanager
def watch_generators(state: RunState) -> Iterator[list[str]]:
    """The innermost modules of the task whose forward moves a generator, as "name (class)", in the order of the calls.

    Hooks compare the generators' states at each beginning and end of a forward. A compiled model is not looked into:
    hooks would be compiled with it.
    """
    found: list[str] = []
    watch = _Watch(f"{type(state.task).__name__}.training_step", state.fabric.device, found)
    modules = {} if state.config.trainer.compile else dict(state.task.named_modules())
    modules.pop("", None)
    handles = [handle for name, module in modules.items() for handle in watch.on(name, module)]
    try:
        yield found
        watch.look()
    finally:
        for handle in handles:
            handle.remove()


class _Watch:
    """Which module is computing, and how the generators stood when the last one began or ended."""

    def __init__(self, outermost: str, device: torch.device, found: list[str]):
        self._computing = [outermost]
        self._device = device
        self._found = found
        self._states = self._now()

    def on(self, name: str, module: nn.Module) -> Iterator[Any]:
        kind = module.original if isinstance(module, KeyedDropout) else type(module).__name__
        title = f"{name} ({kind})"

        def begin(module: nn.Module, inputs: Any) -> None:
            self.look()
            self._computing.append(title)

        def end(module: nn.Module, inputs: Any, output: Any) -> None:
            self.look()
            self._computing.pop()

        yield module.register_forward_pre_hook(begin)
        # called if the forward raises, too: a model may catch that
        yield module.register_forward_hook(end, always_call=True)

    def look(self) -> None:
        """Whatever has moved since the last look was moved by the module that computes."""
        states = self._now()
        moved = any(one != other for one, other in zip(states, self._states, strict=True))
        if moved and self._computing[-1] not in self._found:
            self._found.append(self._computing[-1])
        self._states = states

    def _now(self) -> list[Any]:
        on_gpu = [torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else []
        _, words, *rest = np.random.get_state(legacy=True)
        tensors = [state.numpy().tobytes() for state in (torch.get_rng_state(), *on_gpu)]
        return [*tensors, random.getstate(), np.asarray(words).tobytes(), rest]
