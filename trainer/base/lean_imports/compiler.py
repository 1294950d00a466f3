# pyright: reportPrivateUsage=false
"""Import of torch's compiler when something is compiled. Read in torch 2.13.0 and Lightning 2.6.6.

Lightning imports it in every process, a third of all that is imported and 67 MB, to know one class by name. Torch's
optimizers and process groups call functions of it that do nothing where nothing is compiled. Until anything else of it
is used, `torch._dynamo` is a module that has these names.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"
_DISABLED = "__dynamo_disable"
"""Attribute of a function that is not to be compiled: what the compiler has made of it."""


def install() -> None:
    """Postpone the import of the compiler, unless it has been imported."""
    if _NAME not in sys.modules:
        sys.meta_path.insert(0, _CompilerFinder())


class _Postponed(ModuleType):
    """Module of the compiler before its import: an attribute that it lacks imports it."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):  # the import system, inspect and warnings ask every module for these
            _import_compiler()
            if name in vars(self):
                return vars(self)[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def _import_compiler() -> ModuleType:
    """The compiler, imported into the module object that others hold; by another thread meanwhile: once it is."""
    module = sys.modules.get(_NAME)
    if module is not None and module.__spec__ is not None and type(module.__spec__.loader) is _Postponing:
        sys.modules.pop(_NAME, None)
    return import_module(_NAME)


class _CompilerFinder(MetaPathFinder):
    """Finder of the compiler, twice: first postponed, then imported, which the import of a module below it causes."""

    _postponed: ModuleType | None = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.startswith(f"{_NAME}."):
            _import_compiler()
            if name not in sys.modules:
                return PathFinder.find_spec(name, path)
            # the import system would import what is there a second time
            return ModuleSpec(name, _Imported(sys.modules.pop(name)))
        if name != _NAME:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        if self._postponed is None:
            self._postponed = _Postponed(name)
            spec.loader = _Postponing(spec.loader, self._postponed)
        else:
            sys.meta_path.remove(self)
            spec.loader = _Importing(spec.loader, self._postponed)
        return spec


class _Postponing(Loader):
    """Loader of the postponed module."""

    def __init__(self, loader: Loader, module: ModuleType):
        self._loader = loader
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(
            OptimizedModule=_OptimizedModule,
            disable=_disable,
            graph_break=_do_nothing,
            trace_rules=_Part("trace_rules", clear_lru_cache=_do_nothing),
            utils=_Part("utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
        )


class _Importing(_Postponing):
    """Loader of the module itself, in place of the postponed one."""

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__class__ = ModuleType
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        for function, recursive in _disabled:
            setattr(function, _DISABLED, module.disable(function, recursive, wrapping=False))


class _Imported(Loader):
    """Loader of a module that is imported."""

    def __init__(self, module: ModuleType):
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        with suppress(AttributeError):  # a module of settings, which has kept its own
            module.__spec__ = self._spec


class _Part:
    """Module below the postponed one, of which a few functions are called without it."""

    def __init__(self, name: str, **functions: Callable[..., Any]):
        self._name = name
        vars(self).update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_import_compiler(), self._name), name)


_disabled: list[tuple[Any, bool]] = []
"""Functions that are not to be compiled, and whether what they call is not, either."""


def _disable(function: Any = None, recursive: bool = True, **options: Any) -> Any:
    """The function, or one that calls it until the compiler is imported, if it is torch's or Lightning's own."""
    if options != {"wrapping": False} and not str(getattr(function, "__module__", "")).startswith("lightning."):
        return _import_compiler().disable(function, recursive, **options)
    _disabled.append((function, recursive))
    if "wrapping" in options:  # torch/_compile.py, which looks for _DISABLED before each call
        return function

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return getattr(function, _DISABLED, function)(*args, **named)

    return call


def _do_nothing(*_: Any) -> None:
    pass


class _OfCompiler(type):
    def __instancecheck__(cls, instance: object) -> bool:
        module = sys.modules.get(_NAME)
        return type(module) is ModuleType and isinstance(instance, module.OptimizedModule)


class _OptimizedModule(metaclass=_OfCompiler):
    """Class of the modules that torch.compile returns."""
