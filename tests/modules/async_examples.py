"""Callbacks for tests/engine/test_async_checkpoint.py."""

import os
import time
from pathlib import Path
from typing import Any

from leyden.trainer.core.state import RunState
from leyden.trainer.engine.checkpoints import checkpoint_files


class WritesFor:
    """The checkpoint of a step never becomes complete: its thread stops in the middle of its last file.

    Args:
        step: of the checkpoint.
    """

    def __init__(self, step: int):
        self.step = step

    def on_fit_start(self, state: RunState) -> None:
        if "LEYDEN_TEST_FREED" in os.environ:
            return
        write = checkpoint_files._write_main

        def stuck(content: dict[str, Any], path: Path) -> None:
            if content["position"]["step"] == self.step:
                (path.parent / f".{path.name}.{os.getpid()}").write_bytes(b"half")
                (state.run_dir / "writes").write_text(str(os.getpid()))
                time.sleep(600)
            write(content, path)

        checkpoint_files._write_main = stuck
