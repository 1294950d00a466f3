"""The step of the build that pyproject.toml cannot name: the index of the shells' completion, from the built files."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithIndex(build_py):
    """Writes leyden/trainer/cli/completion/index.txt into the wheel; an editable install has none."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        built = Path(self.build_lib).absolute()
        file = built / "leyden/trainer/cli/completion/index.txt"
        environment = {**os.environ, "PYTHONPATH": str(built), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "leyden.trainer.cli.completion.index", str(file)]
        subprocess.run(command, env=environment, cwd=built, check=True)


setup(cmdclass={"build_py": BuildWithIndex})
