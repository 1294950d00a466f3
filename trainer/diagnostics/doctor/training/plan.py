"""Plan of a doctor's trainings: all are frozen before the first begins, so that every host finds the same."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ....base.atomic_file import write_atomically

FOLDER, PLAN = "train", "plan.json"

Freeze = Callable[[Path, Sequence[str]], str]
"""Freezes a run in a folder. Returns what is wrong with its overrides; "" if nothing is."""


@dataclass(frozen=True)
class PlannedRun:
    """A training of the plan.

    Args:
        name: of its folder.
        on_one_device: on one of the hosts; else on all devices of all.
        refused: why its config is refused; "" where it is not.
    """

    name: str
    on_one_device: bool
    refused: str = ""


class Plan:
    """Freezes trainings below a doctor's folder.

    Args:
        freeze: a run, which the room of composing does.
        run_dir: of the doctor.
        topology: overrides of the topology, as the user typed them.
    """

    def __init__(self, freeze: Freeze, run_dir: Path, topology: Sequence[str]):
        self._freeze = freeze
        self._folder = run_dir / FOLDER
        self._topology = topology
        self.runs: list[PlannedRun] = []

    def on_all(self, name: str, overrides: Sequence[str]) -> None:
        """Add a run over all devices."""
        self._add(PlannedRun(name, False, self._freeze(self._folder / name, [*self._topology, *overrides])))

    def on_one(self, name: str, overrides: Sequence[str]) -> None:
        """Add a run with one worker, on one host."""
        one = ["topology.nodes=1", "topology.devices_per_node=1", "topology.launcher=local"]
        self._add(PlannedRun(name, True, self._freeze(self._folder / name, [*self._topology, *one, *overrides])))

    def write(self, cases: Sequence[str]) -> None:
        """Write the plan.

        Args:
            cases: strategies that are checked, as in `equality.CASES`.
        """
        content = {"cases": list(cases), "runs": [asdict(run) for run in self.runs]}
        write_atomically(self._folder / PLAN, json.dumps(content, indent=2) + "\n")

    def _add(self, run: PlannedRun) -> None:
        assert run.name not in [other.name for other in self.runs]
        self.runs.append(run)


def read_plan(run_dir: Path) -> tuple[list[str], list[PlannedRun]] | None:
    """The strategies that are checked, and the trainings in the order in which they run: those over all hosts first,
    as one host alone has to wait for the others. None: the doctor only measures."""
    path = run_dir / FOLDER / PLAN
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    runs = [PlannedRun(**run) for run in content["runs"]]
    return content["cases"], sorted(runs, key=lambda run: run.on_one_device)
