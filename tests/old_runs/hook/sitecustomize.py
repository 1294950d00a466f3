"""Stops a run right after a given step, by the signal that `leyden stop` sends.

Python imports this module at its start where PYTHONPATH names its folder; make.py sets the STOP_ variables.
"""

import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_LOOP = "leyden.trainer.loop"


class Finder(importlib.abc.MetaPathFinder):
    """Finder of the training loop's module; wraps the method that ends each optimizer step."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _LOOP:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(_LOOP)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def patched(module: ModuleType) -> None:
            execute(module)
            after_step = module.Epoch._count

            def counted(epoch: Any, trained: int) -> None:
                after_step(epoch, trained)
                stop_at_step(epoch.state)

            module.Epoch._count = counted

        spec.loader.exec_module = patched
        return spec


def stop_at_step(state: Any) -> None:
    """Signal the run's leading process from the first worker that has done the step; hold each worker until then."""
    name = os.environ["STOP_NAME"]
    before = state.step < int(os.environ["STOP_STEP"])
    if before or state.stop_request.signal is not None or (name and state.run_dir.name != name):
        return
    try:
        os.close(os.open(os.environ["STOP_MARK"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        pass
    else:
        leader = json.loads(Path(os.environ["STOP_FOLDER"], "agent.json").read_text())
        os.kill(leader["pid"], signal.SIGTERM)
    end = time.monotonic() + 60
    while state.stop_request.signal is None and time.monotonic() < end:
        time.sleep(0.01)


sys.meta_path.insert(0, Finder())
