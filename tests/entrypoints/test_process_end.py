"""The end of a process: what it has yet to write is written, though its objects are not freed one by one."""

from pathlib import Path

import pytest
from runs import HERE, TINY, Freeze, Processes

KEEPS_OPEN = "+callbacks.steps={{_target_:failing_examples.KeepsFileOpen,folder:'{}',fails_at:{}}}"


@pytest.mark.slow
@pytest.mark.parametrize(("fails_at", "code"), [("null", 0), (3, 1)], ids=["done", "failed"])
@pytest.mark.parametrize(
    "options", [[], ["strategy=ddp", "topology.devices_per_node=2"]], ids=["one worker", "two workers"]
)
def test_files_that_callbacks_leave_open_are_complete(
    options: list[str], fails_at: object, code: int, freeze: Freeze, processes: Processes, tmp_path: Path
) -> None:
    run_dir = freeze("run", *TINY, *options, HERE, "trainer.max_steps=3", KEEPS_OPEN.format(tmp_path, fails_at))
    assert processes.run(run_dir)[0] == code
    written = [(tmp_path / f"steps-{rank}").read_text() for rank in range(2 if options else 1)]
    assert written == ["1 2 3 "] * len(written)
