"""Imports of libraries without what they import for another library's sake. Read in torchmetrics 1.9.0."""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_PACKAGE = "torchmetrics"
_SIGNAL = "scipy.signal"


def install() -> None:
    """Have torchmetrics imported, whenever it is, without scipy.signal.

    It imports that, a second of CPU and 64 MB in every worker, to add a name that an audio package misses.
    """
    if _PACKAGE not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finder of torchmetrics, once."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None and _SIGNAL not in sys.modules:
            spec.loader = _WithoutSignal(spec.loader)
        return spec


class _WithoutSignal(Loader):
    """Loader during whose work scipy.signal is a module that has the missed name, and nothing else."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        sys.modules[_SIGNAL] = empty = ModuleType(_SIGNAL)
        setattr(empty, "hamming", None)  # noqa: B010
        try:
            self._loader.exec_module(module)
        finally:
            del sys.modules[_SIGNAL]
