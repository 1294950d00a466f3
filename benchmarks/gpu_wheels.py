"""Wheels for a machine with a GPU and no network: Leyden's, and those of its dependencies that are missing there.

    python benchmarks/gpu_wheels.py FOLDER --has NAMES [--python 3.12]

NAMES is a file with the packages that the machine has, a name a line, as `python3 -m pip list --format=freeze` prints
them there. Needs a network, and Leyden installed here: versions are those of this environment.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(39, 4, -1)] + ["manylinux2014_x86_64"]
NOT_BUILT = (".git", "outputs", "build", "dist", "site", "*.egg-info", "*.whl")


def missing(present: Iterable[str], python: str, package: str = "leyden") -> dict[str, str]:
    """Version by name of what a package needs, directly or not, and a machine lacks.

    Args:
        present: names; what these need themselves is taken to be there.
        python: the machine's version, "3.12".
    """
    known = {canonicalize_name(name) for name in present}
    environment: Mapping[str, str] = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    found: dict[str, str] = {}
    left = [package]
    while left:
        for text in requires(left.pop()) or ():
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            applies = requirement.marker is None or requirement.marker.evaluate(dict(environment))
            if applies and name not in known:
                known.add(name)
                found[name] = version(name)
                left.append(name)
    return dict(sorted(found.items()))


def names_in(text: str) -> list[str]:
    """Names of `pip list --format=freeze`, of requirements, or separated by commas."""
    return [re.split(r"[=<>!~@\s\[;]", word.strip())[0] for word in re.split(r"[,\n]", text) if word.strip()]


def fetch(folder: Path, name: str, wanted: str, python: str) -> None:
    """The wheel of a package, or one built here of a package that has none and is written in Python alone."""
    pip = [sys.executable, "-m", "pip"]
    target = ["--python-version", python, "--implementation", "cp", *(f"--platform={each}" for each in PLATFORMS)]
    download = [*pip, "download", "-q", "--no-deps", "--only-binary=:all:", *target, "-d", folder, f"{name}=={wanted}"]
    if subprocess.run(download, stderr=subprocess.DEVNULL, check=False).returncode:
        subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", folder, f"{name}=={wanted}"], check=True)
        if not list(folder.glob(f"{name.replace('-', '_')}-*-none-any.whl")):
            raise SystemExit(
                f"{name} {wanted} has no wheel for Python {python}, and one that is built here would not fit"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--has", type=Path, required=True, help="file with the names of the packages there")
    parser.add_argument("--python", default="3.12", help="version there")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, wanted in missing(names_in(arguments.has.read_text()), arguments.python).items():
        print(f"{name} {wanted}")
        fetch(arguments.folder, name, wanted, arguments.python)
    with tempfile.TemporaryDirectory() as folder:  # a build leaves files in its tree
        source = shutil.copytree(ROOT, Path(folder) / "source", ignore=shutil.ignore_patterns(*NOT_BUILT))
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", arguments.folder.resolve(), source]
        subprocess.run(pip, check=True)
    size = sum(file.stat().st_size for file in arguments.folder.glob("*.whl"))
    print(f"{arguments.folder}: {len(list(arguments.folder.glob('*.whl')))} wheels, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
