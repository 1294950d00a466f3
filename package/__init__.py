"""Leyden, a declarative trainer for deep networks on images: this folder is installed as the package `leyden`."""

import os
from typing import TYPE_CHECKING, Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
if __name__ != "leyden":
    __path__.clear()  # in an editable install this folder is also found as leyden.package, and must not hold itself
elif os.path.basename(_FOLDER) != __name__:
    # An editable install: the islands lie beside this folder. Setuptools' finder knows all of them but datasets/, which
    # has no __init__.py and is found by a path alone. The links in this folder are for tools that only look at folders.
    __path__.insert(0, os.path.dirname(_FOLDER))


_OFFERED = {
    "Run": "leyden.trainer.api.run",
    "TrainingFailed": "leyden.trainer.api.training",
    "compose": "leyden.trainer.api.training",
    "freeze": "leyden.trainer.api.external",
    "load": "leyden.trainer.api.run",
    "stop": "leyden.trainer.api.training",
    "train": "leyden.trainer.api.training",
    "work": "leyden.trainer.api.external",
}
"""The Python interface, and the modules that are imported when a name of it is used."""
__all__ = ["Run", "TrainingFailed", "compose", "freeze", "load", "stop", "train", "work"]

if TYPE_CHECKING:
    from leyden.trainer.api.external import freeze, work
    from leyden.trainer.api.run import Run, load
    from leyden.trainer.api.training import TrainingFailed, compose, stop, train


def __getattr__(name: str) -> Any:
    """The interface, and `__version__`, imported or read from the installed metadata when used (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name in _OFFERED:
        from importlib import import_module

        return getattr(import_module(_OFFERED[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
