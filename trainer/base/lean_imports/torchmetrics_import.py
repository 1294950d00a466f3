# pyright: reportPrivateUsage=false
"""Import of torchmetrics without audio and torchvision. Read in torchmetrics 1.9.0."""

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_PACKAGE = "torchmetrics"
_SIGNAL = "scipy.signal"
_VISION = "torchvision"


def install() -> None:
    """Have torchmetrics imported, whenever it is, without scipy.signal.

    It imports that, a second of CPU and 64 MB in every worker, to add a name that an audio package misses. And it
    imports torchvision wherever that is installed, which raises where it was built for another torch: no training that
    needs none may end by that.
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
        if spec is not None and spec.loader is not None:
            spec.loader = _Lean(spec.loader)
        return spec


class _Lean(Loader):
    """Loader of a package without what it imports for others."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        with _without_signal(), _without_broken_vision():
            self._loader.exec_module(module)


@contextmanager
def _without_signal() -> Generator[None, None, None]:
    """Meanwhile scipy.signal is a module that has the missed name, and nothing else, unless it is there already."""
    if _SIGNAL in sys.modules:
        yield
        return
    sys.modules[_SIGNAL] = empty = ModuleType(_SIGNAL)
    setattr(empty, "hamming", None)  # noqa: B010
    try:
        yield
    finally:
        del sys.modules[_SIGNAL]


@contextmanager
def _without_broken_vision() -> Generator[None, None, None]:
    """Torchvision is not installed meanwhile, as torchmetrics sees it, if it cannot be imported."""
    if find_spec(_VISION) is None or _can_be_imported(_VISION):
        yield
        return
    from lightning_utilities.core.imports import RequirementCache

    check = RequirementCache._check_requirement

    def check_spec(self: RequirementCache) -> None:
        check(self)
        if str(self.requirement).startswith(_VISION):
            self.available, self.message = False, f"{_VISION} cannot be imported"

    RequirementCache._check_requirement = check_spec
    try:
        yield
    finally:
        RequirementCache._check_requirement = check


def _can_be_imported(name: str) -> bool:
    try:
        import_module(name)
    except Exception:
        return False
    return True
