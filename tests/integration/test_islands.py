"""The rule of the islands: conf, trainer, datasets and models meet in the YAML alone."""

import ast
import os
import pkgutil
import re
from collections import Counter, defaultdict
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import quantiles

from folders import ROOT

import leyden

ISLANDS = ("conf", "trainer", "datasets", "models")
FILES = [path for island in ISLANDS for path in sorted((ROOT / island).rglob("*.py"))]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(path: Path) -> set[str]:
    """Absolute names of everything that a file imports, relative imports resolved."""
    package = ["leyden", *path.relative_to(ROOT).parent.parts]
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return names


def test_no_island_imports_another() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(ISLANDS)
    for path in FILES:
        own = path.relative_to(ROOT).parts[0]
        others = {f"leyden.{island}" for island in ISLANDS if island != own} | {i for i in ISLANDS if i != own}
        foreign = {name for name in imported(path) if any(name == o or name.startswith(f"{o}.") for o in others)}
        assert not foreign, path


def test_imports_inside_an_island_are_relative() -> None:
    for path in FILES:
        own = path.relative_to(ROOT).parts[0]
        assert not re.search(rf"^\s*(from|import) (leyden|{own})\b", path.read_text(), re.MULTILINE), path


def test_the_trainer_names_no_model_and_no_dataset() -> None:
    named = {p.stem for island in ("models", "datasets") for p in (ROOT / island).glob("*.py")} - {"__init__", "files"}
    named -= {"augment", "decode", "hashing", "synthetic"}  # words of the trade, not names of ours
    for path in (ROOT / "trainer").rglob("*.py"):
        code = parsed(path)
        strings = {n.value for n in ast.walk(code) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        names = {n.id for n in ast.walk(code) if isinstance(n, ast.Name)}
        assert not [text for text in strings if re.search(r"leyden\.(models|datasets)\.\w", text)], path
        assert not named & names, path


def test_the_package_itself_starts_the_command_and_offers_the_interface() -> None:
    own = {path.name: imported(path) for path in (ROOT / "package").rglob("*.py")}
    assert set(own) == {"__init__.py", "__main__.py"}
    others = {name for name in own["__init__.py"] if not name.startswith("leyden.trainer.api.")}
    assert {name.split(".")[0] for name in others} <= {"os", "importlib", "typing"}
    assert own["__main__.py"] - {"sys", "typing", "typing.NoReturn"} == {
        "leyden.trainer.cli.main",
        "leyden.trainer.cli.main.main",
    }


def test_the_packages_end() -> None:
    """A walk over them, which documentation tools make; the folder package/ held itself in an editable install."""
    found = list(islice((each.name for each in pkgutil.walk_packages(leyden.__path__, "leyden.")), 3000))
    assert len(found) == len(set(found)) < 3000
    assert "leyden.trainer.engine.loop" in found


OPTIONAL = {
    "core/network/trained_network.py task",  # any LightningModule: the one place that looks for its `model`
}
FOREIGN = ("loader", "self._train", "holder", "batch_sampler", "getattr(loader, 'worker_init_fn', None)")
"""DataLoaders of the user's, of torch or not, as the room of data calls them."""


def test_what_has_a_contract_is_not_looked_up_by_name() -> None:
    """Loggers, callbacks, tasks, data and augmentations: a misspelt name would be silence, and no type checker sees it.

    What a dataset that inherits nothing may have is looked up in core/declarations.py alone.
    """
    found = set[str]()
    for path in (ROOT / "trainer").rglob("*.py"):
        file = str(path.relative_to(ROOT / "trainer"))
        for node in ast.walk(parsed(path)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1):
                continue
            if node.func.id not in ("getattr", "hasattr") or not isinstance(node.args[1], ast.Constant):
                continue
            part = ast.unparse(node.args[0])
            named = re.search(r"(task|logger|callback|augment|data|dataset|datamodule|whole)(\(\))?$", part)
            if named or (file.startswith("data/") and part not in FOREIGN):
                found.add(f"{file} {part}")
    assert found == OPTIONAL


def test_folders_alone_show_the_whole_package() -> None:
    """Import-linter looks for the modules of an editable install there, and nothing else: none may be missing."""
    package = ROOT / "package"
    seen = {Path(at, name) for at, _, names in os.walk(package, followlinks=True) for name in names}
    assert {path.relative_to(package) for path in seen if path.suffix == ".py"} == {
        *(path.relative_to(ROOT) for path in FILES), Path("__init__.py"), Path("__main__.py")
    }  # fmt: skip


def test_datasets_is_no_package() -> None:
    assert not (ROOT / "datasets" / "__init__.py").exists()
    for island in ("conf", "trainer", "models", "package"):
        assert ast.get_docstring(ast.parse((ROOT / island / "__init__.py").read_text()))


def test_a_stranger_finds_the_way() -> None:
    """Sizes that a reader can take in: entries of a folder, lines of a file; and a class is found by its name."""
    folders = Counter(path.parent for path in FILES)
    assert not {str(folder): count for folder, count in folders.items() if count > 25}
    assert not {str(path): lines for path in FILES if (lines := path.read_text().count("\n")) > 400}
    assert len([entry for entry in (ROOT / "trainer").iterdir() if entry.name != "__pycache__"]) <= 19
    named: dict[str, list[str]] = defaultdict(list)
    lengths: list[int] = []
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                named[node.name].append(str(path))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append((node.end_lineno or 0) - node.lineno + 1)
    assert not {name: paths for name, paths in named.items() if len(paths) > 1}
    assert quantiles(lengths, n=10)[-1] < 20
