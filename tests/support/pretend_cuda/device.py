"""A CUDA device in name only, for the CPU build of torch: imported before torch, it makes `cuda` a device that guards,
streams and events accept. Nothing is computed there."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

assert "torch" not in sys.modules, "the guard is registered before torch looks for one"
ctypes.CDLL(os.environ["PRETEND_CUDA_LIBRARY"], mode=ctypes.RTLD_GLOBAL)

import torch  # noqa: E402

WAITS: list[str] = []
"""Calls of Python that let the host wait for the device."""


class Event:
    """The device does what it is given at once, an event a millisecond."""

    recorded = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None:
        Event.recorded += 1
        self.at = Event.recorded

    def wait(self, *_: Any) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: "Event") -> float:
        return float(later.at - self.at)

    def synchronize(self) -> None:
        WAITS.append("torch.cuda.Event.synchronize")


class Stream:
    device = torch.device("cuda", 0)
    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    def wait_event(self, _: Event) -> None: ...

    def wait_stream(self, _: "Stream") -> None: ...

    def synchronize(self) -> None:
        WAITS.append("torch.cuda.Stream.synchronize")

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: Any) -> None: ...


def _swap(one: torch.Tensor, other: torch.Tensor, swap: Any = torch.utils.swap_tensors) -> None:
    """What a module that is moved to where it is already would swap, and cannot, as modes refer to it."""
    if one.device != other.device:
        swap(one, other)


@contextlib.contextmanager
def pretended(count: int) -> Iterator[None]:
    """torch.cuda with `count` devices."""
    stream = Stream()
    names: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: count,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: "none",
        "get_device_properties": lambda device=None: mock.Mock(total_memory=80 * 2**30, name="none", major=9, minor=0),
        "is_bf16_supported": lambda *_, **__: True,
        "synchronize": lambda device=None: WAITS.append("torch.cuda.synchronize"),
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda device=None: stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda state, device=None: None,
        "manual_seed_all": lambda seed: None,
        "default_generators": tuple(torch.Generator() for _ in range(count)),
        "empty_cache": lambda: None,
        "mem_get_info": lambda device=None: (70 * 2**30, 80 * 2**30),
        "max_memory_allocated": lambda device=None: 3 * 10**9,
        "max_memory_reserved": lambda device=None: 4 * 10**9,
        "reset_peak_memory_stats": lambda device=None: None,
        "amp.common.amp_definitely_not_available": lambda: False,
    }
    names |= {"torch.Tensor.record_stream": lambda *_: None, "torch.utils.swap_tensors": _swap}
    lightning = "lightning.fabric.accelerators.cuda."
    with contextlib.ExitStack() as patches:
        for name, value in names.items():
            patches.enter_context(mock.patch(name if name.startswith("torch.") else f"torch.cuda.{name}", value))
        patches.enter_context(mock.patch(f"{lightning}num_cuda_devices", return_value=count))
        patches.enter_context(mock.patch(f"{lightning}_get_all_visible_cuda_devices", return_value=list(range(count))))
        yield
