"""Attributes of the trainer read by the source of a class written for Lightning. Nothing is run."""

import ast
import inspect
import linecache
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from .base_classes import of_lightning

_NOT_CALLED = ("predict", "on_predict")
"""Prefixes of methods that training does not call."""
_CATCHES = {"AttributeError", "Exception", "BaseException"}


class Use(NamedTuple):
    """One read of `TRAINER.NAME`."""

    name: str
    file: str
    line: int


def uses(cls: type, trainer: str = "self.trainer") -> list[Use]:
    """Reads of `TRAINER.NAME` in the class's own source and in that of its bases outside Lightning.

    Args:
        trainer: how the class calls it: "self.trainer" in a module, "trainer" among the arguments of a callback.

    Left out: names that the class tests first (hasattr, getattr, an except for AttributeError) or sets itself, and
    methods for prediction. A class whose source cannot be read has none.
    """
    readers = [_read(base, trainer) for base in cls.__mro__ if not of_lightning(base)]
    known = {name for reader in readers for name in reader.known}
    return [use for reader in readers for use in reader.found if use.name not in known]


@cache  # nn.Module alone has 2,600 lines, and a sweep asks for every trial
def _read(cls: type, trainer: str) -> "_Reader":
    file = inspect.getsourcefile(cls) or "" if cls.__module__ != "builtins" else ""
    reader = _Reader(file, trainer)
    name = trainer.rpartition(".")[2]
    if file and not any(name in line for line in linecache.getlines(file)):
        return reader  # to find a class in its source, Python parses the file: a third of a second for nn.Module
    try:
        lines, first = inspect.getsourcelines(cls)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return reader
    reader.before = max(0, first - 1)
    reader.visit(tree)
    return reader


class _Reader(ast.NodeVisitor):
    def __init__(self, file: str, trainer: str):
        self.file = file
        self.trainer = trainer
        self.before = 0
        """Lines of the file above the class."""
        self.found: list[Use] = []
        self.known: set[str] = set()
        """Names that the class tests before it reads them, or sets."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not node.name.startswith(_NOT_CALLED):
            self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> None:
        caught = {name.id for handler in node.handlers for name in _names(handler.type)}
        if caught & _CATCHES or any(handler.type is None for handler in node.handlers):
            seen = len(self.found)
            for statement in node.body:
                self.visit(statement)
            del self.found[seen:]
            for statement in (*node.handlers, *node.orelse, *node.finalbody):
                self.visit(statement)
        else:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr") and len(node.args) > 1:
            asked, name = node.args[:2]
            if self._is_trainer(asked) and isinstance(name, ast.Constant):
                self.known.add(str(name.value))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._is_trainer(node.value):
            if isinstance(node.ctx, ast.Load):
                self.found.append(Use(node.attr, self.file, self.before + node.lineno))
            else:
                self.known.add(node.attr)
        self.generic_visit(node)

    def _is_trainer(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute | ast.Name) and ast.unparse(node) == self.trainer


def _names(node: ast.AST | None) -> Iterator[ast.Name]:
    return (name for name in ast.walk(node) if isinstance(name, ast.Name)) if node is not None else iter(())
