"""Leyden, a declarative trainer for deep networks on images: this folder is installed as the package `leyden`."""

import os

_FOLDER = os.path.dirname(os.path.abspath(__file__))
if os.path.basename(_FOLDER) != __name__:
    # An editable install: the islands lie beside this folder. Setuptools' finder knows all of them but datasets/, which
    # has no __init__.py and is found by a path alone.
    __path__.append(os.path.dirname(_FOLDER))


def __getattr__(name: str) -> str:
    """`__version__`, read from the installed metadata when it is asked for (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
