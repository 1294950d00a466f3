"""The fault campaign: a pairwise cover of fault, phase and strategy, each cell a real run.

Each run that is hit ends by itself with one sentence, or goes on; leaves no process behind and no checkpoint damaged;
and once the fault is gone it is resumed, to the weights of the undisturbed run where these are promised.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import yaml
from fault_cells import CELLS, FAULTS, IN_CI, PHASES, SERVERS, STRATEGIES, exists
from fault_injection import DataRemoved, Fault, fault_named
from fault_run import SPLITS, STEPS, FaultRun, options, unreadable, write_images
from pairwise import pairs_of
from runs import Freeze, states, summary, weights

from leyden.trainer.entrypoints.start import start

Undisturbed = Callable[[str, Freeze], Path]
CASES = [
    pytest.param(
        cell, n, id="-".join(cell).replace(" ", "_"), marks=pytest.mark.slow if cell in IN_CI else pytest.mark.campaign
    )
    for n, cell in enumerate(dict.fromkeys((*CELLS, *IN_CI)))
]
STATES = {
    "kill worker": ("failed", "crashed (no exit status)"), "kill agent": ("crashed (no exit status)",),
    "kill launcher": ("crashed (no exit status)", "preempted"), "kill server": ("failed",),
    "kill coordinator": ("crashed (no exit status)", "preempted"),
    "SIGTERM": ("preempted", "done"), "SIGINT": ("interrupted", "done"), "SIGSTOP": ("done",), "clock step": ("done",),
    "memory limit": ("failed", "crashed (no exit status)"),
    # a disk that takes nothing takes no status either
    "EIO": ("failed", "crashed (no exit status)", "done"),
}  # fmt: skip
"""What `leyden status` says of a run after a fault; of any other fault failed or done."""


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def undisturbed(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """undisturbed(strategy, freeze) -> a whole run, made once."""
    made: dict[str, Path] = {}

    def make(strategy: str, freeze: Freeze) -> Path:
        if strategy not in made:
            scratch = tmp_path_factory.mktemp("undisturbed")
            run = run_of(strategy, images, scratch, scratch, freeze, "undisturbed")
            run.start()
            assert run.end() == 0, run.output
            made[strategy] = run.folder
        return made[strategy]

    return make


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run_of(strategy: str, images: Path, place: Path, scratch: Path, freeze: Freeze, name: str = "run") -> FaultRun:
    words = options(strategy, images)
    if strategy == "pipeline":
        sweep = ["-m", "hydra/launcher=pipeline", "hydra.launcher.scheduler=ring", f"hydra.sweep.dir={place / 'sweep'}"]
        return FaultRun(place / "sweep", scratch, [*sweep, *words, "optimizer.lr=0.01,0.02"])
    frozen = freeze(name, *words)
    if frozen.parent != place:
        (place / name).mkdir()
        (place / name / "config.yaml").write_bytes((frozen / "config.yaml").read_bytes())
    return FaultRun(place / name, scratch)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("cell", "number"), CASES)
def test_a_fault(
    cell: tuple[str, str, str], number: int, images: Path, undisturbed: Undisturbed, freeze: Freeze, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    name, phase, strategy = cell
    fault = fault_named(name, tmp_path / "fault", number)
    with ExitStack() as stack:
        stack.callback(fault.close)
        if isinstance(fault, DataRemoved):
            fault.images = images
        run = run_of(strategy, images, fault.place(), tmp_path / "scratch", freeze)
        stack.callback(run.kill)
        fault.equip(run, phase)
        code = hit(run, fault, phase, strategy, number)
        judge(run, fault, cell, code, capsys)
        if code:
            frozen = tmp_path / "run" / "config.yaml"
            if not run.words and not run.folder.exists():  # refused at its start, as if it had never been
                run.folder.mkdir()
                (run.folder / "config.yaml").write_bytes(frozen.read_bytes())
            run.start()
            assert run.end() == 0, f"the resumption has failed:\n{run.output}"
            assert "Traceback" not in run.output
            assert not run.orphans()
        assert_complete(run, strategy, undisturbed, freeze)


def hit(run: FaultRun, fault: Fault, phase: str, strategy: str, number: int) -> int:
    """Start the run and inject the fault in the phase. Returns the exit code of the run."""
    rank = "any" if strategy == "pipeline" else str(number % 2) if strategy != "single" and phase != "save" else "0"
    # a kill in a save: between the file's last byte and its new name
    inside = phase == "save" and type(fault).__name__ in ("Kill", "MemoryLimit")
    run.start("flush" if inside else phase, rank)
    held = run.held()
    before = run.checkpoints()
    assert before or phase == "start"
    fault.inject(run, held)
    run.open_gate()
    code = run.end()
    orphans = run.orphans()
    fault.lift(run)
    assert not orphans
    assert not [path for path in before if not path.exists()], "a checkpoint is lost"
    assert not list(unreadable(before))
    return code


def judge(
    run: FaultRun, fault: Fault, cell: tuple[str, str, str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the run has said, and what `leyden status` says of it."""
    name, phase, _ = cell
    # a start is refused: by what builds the parts, or by the preflight
    allowed = (*fault.codes, 2, 3) if phase == "start" and code > 0 else fault.codes
    assert code in allowed, f"exit code {code}\n{run.output}"
    # torch logs a module of its own that it could not import, with the traceback, and goes on
    assert "Traceback" not in re.sub(r"^\[rank\d+\]:W.*\n", "", run.output, flags=re.MULTILINE), run.output
    if fault.says and code:
        said = len(re.findall("refused by the preflight" if code == 3 else fault.says, run.output))
        assert said == 1 or (run.words and said), run.output  # each trial of a pipeline fails by itself
    folders = [folder for folder in run.run_dirs if folder.exists()]
    found = {folder: row["state"] for folder, row in states(capsys, *folders).items()} if folders else {}
    expected = STATES.get(name, ("failed", "done"))
    if run.words:  # trials that were not in training are as they were
        expected = (*expected, "preempted", "not started", "crashed (no exit status)", "done")
    if phase == "start":
        expected = (*expected, "not started")
    assert not [state for state in found.values() if state not in expected], (found, run.output)


def assert_complete(run: FaultRun, strategy: str, undisturbed: Undisturbed, freeze: Freeze) -> None:
    """The run has ended as if there had been no fault."""
    assert all(summary(folder)["status"] == "done" for folder in run.run_dirs)
    assert not list(unreadable(run.checkpoints()))
    if strategy == "pipeline":
        assert len(run.run_dirs) == 2
        for trial in run.run_dirs:
            assert_equal(trial, _alone(trial, freeze))
    elif strategy in SERVERS:
        assert summary(run.folder)["steps"] == summary(undisturbed(strategy, freeze))["steps"]
        assert summary(run.folder)["samples"] >= 3 * SPLITS["train"]
    else:
        assert summary(run.folder)["steps"] == STEPS
        assert_equal(run.folder, undisturbed(strategy, freeze))


def _alone(trial: Path, freeze: Freeze) -> Path:
    """A trial of a pipeline, trained by itself over the partitions in the same order."""
    overrides = yaml.safe_load((trial / ".hydra" / "overrides.yaml").read_text())
    order = str(summary(trial)["partition_orders"]).replace(" ", "")
    own = ["topology.devices_per_node=1", "dataset.partitions=2", f"dataset.partition_order={order}"]
    alone = freeze(f"alone-{trial.name}", *overrides, *own)
    assert start(alone) == 0
    return alone


def assert_equal(one: Path, other: Path) -> None:
    """Bit for bit."""
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs), "the weights differ"


def test_the_cover_is_pairwise() -> None:
    possible = {
        (fault, phase, strategy)
        for fault in FAULTS for phase in PHASES for strategy in STRATEGIES if exists((fault, phase, strategy))
    }  # fmt: skip
    wanted, covered = (set().union(*map(pairs_of, cells)) for cells in (possible, CELLS))
    assert covered == wanted
    assert set(CELLS) <= possible
    assert set(IN_CI) <= possible
    assert len(CELLS) == len(set(CELLS)) <= 115


def test_a_cover_with_a_hole_is_seen() -> None:
    covered = set().union(*map(pairs_of, CELLS[:-1]))
    assert covered != set().union(*map(pairs_of, CELLS))
