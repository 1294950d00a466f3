"""Random numbers as functions of (seed, purpose), and the states of generators for checkpoints."""

import random
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_MASK = (1 << 64) - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(*words: int) -> int:
    """63 well-mixed bits of a sequence of integers (SplitMix64 finalizer, Steele et al. 2014, chained).

    Sums of seed and epoch would repeat: seed 0 in epoch 1 would draw as seed 1 in epoch 0.
    """
    return _mix_words(words) >> 1


def mix_each(words: Sequence[int], last: Sequence[int]) -> list[int]:
    """`mix(*words, word)` for each of the last words, in a fifth of the time."""
    state = np.array(last, dtype=np.int64).view(np.uint64)
    state += np.uint64((_mix_words(words) + _GOLDEN) & _MASK)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
    return ((state ^ (state >> np.uint64(31))) >> np.uint64(1)).tolist()


def _mix_words(words: Iterable[int]) -> int:
    state = _GOLDEN
    for word in words:
        state = (state + _GOLDEN + (word & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * _FIRST) & _MASK
        state = ((state ^ (state >> 27)) * _SECOND) & _MASK
        state ^= state >> 31
    return state


def generator(*words: int) -> torch.Generator:
    """A CPU generator seeded by the words alone."""
    return torch.Generator().manual_seed(mix(*words))


def seed_everything(*words: int) -> None:
    """Seed torch's generators of all devices, Python's and NumPy's by the words."""
    torch.manual_seed(mix(*words))
    seed_host(*words)


def seed_host(*words: int) -> None:
    """Seed torch's CPU generator, Python's and NumPy's by the words; generators of GPUs keep their state."""
    set_host_seed(mix(*words))


def set_host_seed(seed: int) -> None:
    """Seed the same generators by one number, that of `mix` or `mix_each`."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def keep_host_state() -> Generator[None, None, None]:
    """Afterwards torch's CPU generator, Python's and NumPy's are as they were."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


def capture(device: torch.device) -> dict[str, Any]:
    """The state of every generator of this process, as plain Python and tensors."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    words = torch.from_numpy(np.asarray(keys).astype(np.int64))
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [torch.tensor(random.getstate()[1]), random.getstate()[2]],
        "numpy": [str(kind), words, int(position), int(has_gauss), float(gauss)],
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Restore the states of `capture`."""
    torch.set_rng_state(state["torch"])
    *words, gauss_next = state["python"]
    if isinstance(words[0], torch.Tensor):  # in older checkpoints they are numbers
        words = words[0].tolist()
    random.setstate((3, tuple(words), gauss_next))
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
