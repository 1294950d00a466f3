"""The hostile corpus: nothing is executed, everything is named, and nothing takes long."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from corpus_outcomes import Corpus, entries
from folders import CAMPAIGN, MODULES, SUPPORT
from measured_command import as_process


def test_there_are_enough_of_every_kind() -> None:
    found = [(entry.door, entry.name) for entry in entries()]
    assert len(found) > 570  # docs/security.md
    assert len(set(found)) == len(found)
    assert len({door for door, _ in found}) >= 20


@pytest.mark.slow
def test_one_of_each_door(tmp_path: Path) -> None:
    """In forks of one process, which is what CI has time for."""
    command = [sys.executable, str(CAMPAIGN / "corpus_forks.py"), str(tmp_path), "60"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(MODULES)])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_every_entry(tmp_path: Path) -> None:
    """The real command for each, in a process of its own: what benchmarks/hostile_corpus.py writes down."""
    failed = [outcome for outcome in Corpus(tmp_path, as_process).outcomes(entries()) if outcome.faults]
    assert not failed, "\n".join(f"{one.entry.door}: {one.entry.name}: {'; '.join(one.faults)}" for one in failed)
