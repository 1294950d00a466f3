"""Operations on the pretended device: shapes, dtypes and devices are checked as on a real one, nothing is computed."""

import linecache
import traceback
from collections import Counter
from typing import Any

import torch
from device import WAITS
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_WAITING = ("aten._local_scalar_dense", "aten.nonzero", "aten.equal", "aten.masked_select", "aten.unique")
"""Operations whose result the host needs before it goes on."""


class PretendedCuda(TorchDispatchMode):
    """Counts, while `counting`, operations, those for which the host waits, and blocking copies, by line of Leyden."""

    def __init__(self) -> None:
        super().__init__()
        self.counting = False
        self.operations = 0
        self.waits: Counter[str] = Counter()
        self.blocking_copies: Counter[str] = Counter()
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    def begin(self) -> None:
        self.counting, self.operations = True, 0
        self.waits, self.blocking_copies = Counter(), Counter()
        WAITS.clear()

    def end(self) -> dict[str, Any]:
        self.counting = False
        waits = dict(self.waits)
        waits.update(Counter(WAITS))
        return {"operations": self.operations, "waits": waits, "blocking_copies": dict(self.blocking_copies)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        fakes = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor)]
        device = kwargs.get("device")
        device = None if device is None else torch.device(device)
        if name.startswith(("aten.pin_memory", "aten._pin_memory")):
            return args[0]
        if not fakes and (device is None or device.type != "cuda"):
            return func(*args, **{**kwargs, "pin_memory": False} if kwargs.get("pin_memory") else kwargs)
        on_device = any(fake.device.type == "cuda" for fake in fakes)
        to_host = name.startswith("aten._to_copy") and on_device and device is not None and device.type == "cpu"
        self._count(name, on_device, to_host, bool(kwargs.get("non_blocking")))
        if name.startswith("aten._local_scalar_dense"):
            return 1.0 if fakes[0].is_floating_point() else True if fakes[0].dtype is torch.bool else 1
        if name.startswith("aten.equal"):
            return True
        if name.startswith("aten._fused_sgd_"):  # it changes its arguments, and has no fake of its own
            assert {fake.device.type for fake in fakes} == {"cuda"}
            return None
        if to_host:
            return torch.ones(fakes[0].shape, dtype=kwargs.get("dtype") or fakes[0].dtype)
        args, kwargs = tree_map(self._faked, (args, kwargs))
        with self._fake:
            return func(*args, **kwargs)

    def _faked(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and not isinstance(leaf, FakeTensor) and leaf.device.type == "cpu":
            return self._fake.from_tensor(leaf)
        return leaf

    def _count(self, name: str, on_device: bool, to_host: bool, non_blocking: bool) -> None:
        if not self.counting:
            return
        self.operations += 1
        if on_device and (to_host or name.startswith(_WAITING)):
            self.waits[f"{name}  {_line()}"] += 1
        elif not on_device and name.startswith("aten._to_copy") and not non_blocking:
            self.blocking_copies[_line()] += 1


def _line() -> str:
    """The innermost line of Leyden on the stack."""
    for frame, number in traceback.walk_stack(None):
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if module.startswith("leyden."):
            return f"{module}:{number} {code.co_name}: {linecache.getline(code.co_filename, number).strip()}"
    return "?"
