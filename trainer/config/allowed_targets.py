"""What a config may name: the user's own code, and of other packages classes that make parts of a training.

The name decides before anything is imported, then what the object really is, since one object has many names.
"""

import os
import re
import sys
from functools import cache, partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_path
from types import BuiltinFunctionType, ModuleType
from typing import Any, Literal

from .lightning.base_classes import derives_from

MOST_CHARACTERS = 500
OWN_PACKAGES = "LEYDEN_OWN_PACKAGES"  # environment variable: installed packages that count as the user's own
REMEDY = "a function of your own that calls it: two lines of a .py file in the current folder"
_VALUES = {
    "builtins": "bool bytes complex dict float frozenset int list range set slice str tuple", "decimal": "Decimal",
    "collections": "Counter OrderedDict deque", "datetime": "date datetime time timedelta timezone",
    "fractions": "Fraction", "pathlib": "Path PosixPath PurePath PurePosixPath", "types": "SimpleNamespace",
}  # fmt: skip
VALUES = frozenset(f"{module}.{name}" for module, names in _VALUES.items() for name in names.split())
_LIGHTNING = ("lightning.pytorch.", "lightning.fabric.", "pytorch_lightning.", "lightning_fabric.")
PACKAGES = (
    "torch.nn.", "torch.optim.", "torch.distributed.fsdp.", "torchmetrics.", "torchvision.transforms.",
    "torchvision.models.", "torchvision.ops.", "torchvision.datasets.", "timm.models.", "timm.layers.", "timm.loss.",
    "timm.optim.", "timm.scheduler.", "leyden.models.", "leyden.datasets.", "leyden.trainer.components.",
    "leyden.trainer.data.task_loaders.", "hydra.experimental.callbacks.", "hydra_plugins.", "optuna.samplers.",
    "optuna.pruners.", *(f"{p}{s}." for p in _LIGHTNING for s in ("callbacks", "loggers", "strategies", "plugins")),
)  # fmt: skip
NAMES = ("torch.tensor", "numpy.array", "timm.create_model", "timm.models._factory.create_model")
KNOWN = frozenset(name.partition(".")[0] for name in (*PACKAGES, *NAMES))
STDLIB = Path(get_path("stdlib")).resolve()
UNPICKLING = ("torchvision.datasets.lsun.",)
FUNCTIONS = ("torch.nn.functional.", "torch.nn.init.", "torch.distributed.fsdp.wrap.", "torchvision.models.")
BASES = {
    "Module": "torch.nn.", "Optimizer": "torch.optim.", "LRScheduler": "torch.optim.", "Dataset": "torch.utils.data.",
    **dict.fromkeys(("LightningModule", "LightningDataModule", "Callback", "Logger", "Strategy"), _LIGHTNING),
}  # fmt: skip


class RefusedTarget(ValueError):
    """A target that no config may name; the message is a predicate of it."""


def refused_name(name: str, nested: bool = False) -> str | None:
    """The reason why no config may name this import path, decided without importing it; None: it may.

    Args:
        nested: it is an argument's, not that of a config group, which takes any class of the group's base.
    """
    parts = name.split(".")
    if len(name) > MOST_CHARACTERS or not all(part.isidentifier() for part in parts):
        return f"is no import path of at most {MOST_CHARACTERS} characters"
    if any(part.startswith("__") for part in parts[parts[0] == "__main__" :]):
        return "has a part that begins with two underscores: Python's own machinery, which no config may name"
    origin = origin_of(name)
    if name in VALUES or name.startswith("math.") or origin in ("own", "nowhere"):
        return None
    is_class = parts[-1][0].isupper()  # by its name: a function of torch is refused without importing torch
    known = name in NAMES or name.startswith(PACKAGES) or (is_class and not nested)
    if origin == "installed" and known and not any(part.startswith("_") for part in parts):
        return None
    return "is not of the classes and functions that a config may name"


def refused_object(found: Any, nested: bool = False) -> str | None:
    """The reason why no config may name this object, by where it is defined; None: it may."""
    if isinstance(found, partial):
        return refused_object(found.func, nested)
    if isinstance(found, ModuleType):
        return None  # the caller says that it cannot be called
    module = str(getattr(found, "__module__", None) or type(found).__module__)
    name = getattr(found, "__name__" if isinstance(found, BuiltinFunctionType) else "__qualname__", "")
    real = f"{module}.{name or type(found).__qualname__}".replace("pathlib._local.", "pathlib.")
    if origin_of(module) == "own" or real in (*VALUES, *NAMES) or real.startswith("math."):
        return None
    if isinstance(found, type):
        allowed = real.startswith(PACKAGES) and not real.startswith(UNPICKLING)
        allowed = allowed or (not nested and derives_from(found, BASES))
    elif isinstance(found, BuiltinFunctionType):  # most of torch.nn.functional are
        functional = getattr(sys.modules.get("torch.nn.functional"), "__dict__", {})
        allowed = any(found is each for each in functional.values())
    else:
        allowed = (real.startswith(FUNCTIONS) and "." not in name) or re.match(r"leyden\.datasets\..*\.declared$", real)
    return None if allowed else f"is {real}, not of the classes and functions that a config may name"


def origin_of(name: str) -> Literal["own", "installed", "stdlib", "nowhere"]:
    """Whose code a module, or what it holds, is; what is installed in editable mode is the user's own."""
    parts = name.split(".")
    if parts[0] in sys.stdlib_module_names:
        return "stdlib"
    if parts[0] == "__main__" or parts[0] in re.findall(r"\w+", os.environ.get(OWN_PACKAGES, "")):
        return "own"
    file = _file(parts)
    if file is None:
        return "nowhere"
    packed = {"site-packages", "dist-packages"} & set(file.parts) or parts[0] in KNOWN
    if packed or _has_packages(file.parents[1] if file.name == "__init__.py" else file.parent):
        return "installed"
    return "stdlib" if file.is_relative_to(STDLIB) else "own"


@cache
def _has_packages(folder: Path) -> bool:
    return any(True for _ in folder.glob("*.dist-info"))  # of pip install --target


def _file(parts: list[str]) -> Path | None:
    """The file that a module is found in, without importing it; of a namespace package, the file of a module in it."""
    try:
        spec = find_spec(parts[0])
    except (ImportError, ValueError):
        return None
    for depth in range(2, len(parts) + 1):
        if spec is not None and spec.origin is None:
            places = list(spec.submodule_search_locations or ())
            spec = PathFinder.find_spec(".".join(parts[:depth]), places)
    if spec is None or spec.origin is None:
        return None
    return _resolved(spec.origin) if spec.has_location else STDLIB


@cache
def _resolved(file: str) -> Path:
    return Path(file).resolve()
