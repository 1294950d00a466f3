"""Frozen runs without the command line, processes that end with the test, reruns, and the limit of the quick lane."""

import gc
import os
import signal
import sys

# before torch is loaded: two threads of a net of 1,000 weights spin for each other, on cores that other tests want
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Woken threads do not preempt running ones, in every process of the tests. With fewer cores than workers, Gloo's
# threads spin in epoll_wait, presumably while a preempted thread holds the lock of a connection: tests of the butterfly
# took 1.5 times as long, and four times as much of the system's time.
if hasattr(os, "sched_setscheduler"):
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any

import lightning_examples
import pytest
from agents import Agent
from forked_commands import forked_commands
from hydra.types import RunMode
from omegaconf import OmegaConf
from pool import Pool
from runs import TINY, Freeze, Processes
from slurm_cluster import SlurmCluster

from leyden.trainer.base.process import frozen_imports, restored_environment
from leyden.trainer.compose.composer import Composer
from leyden.trainer.compose.composition.resolved_values import without_hydra
from leyden.trainer.entrypoints.start import start

# an eighth of the time of tests that run in this process went into collections of all that the session keeps
gc.set_threshold(10_000, 20, 50)

# ignored where a shell has started the tests in its background, and so in every command that they start
signal.signal(signal.SIGINT, signal.default_int_handler)

_QUICK_S = 10
"""A test that takes longer than this is none of the quick lane's, even on a busy machine."""

_REASON = 3000
"""Characters of a rerun test's failure that are shown, from its end."""

_MOST_RERUNS = 10
"""Tests that may pass at a further try in one session; more are no accident."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _spread_rooms(items)
    rows: Counter[str] = Counter()
    for item in items:
        _mark_rows(item, rows)
        # real processes on a machine that may be busy; what ran into its time limit would only do it again
        if item.get_closest_marker("slow") or item.get_closest_marker("machine"):
            item.add_marker(pytest.mark.flaky(reruns=2, rerun_except="from pytest-timeout"))


def _spread_rooms(items: list[pytest.Item]) -> None:
    """Spreads the files of each folder over the session: those of launching wait most of the time, those of strategies
    compute, and two that run at a time are to be of both kinds."""
    folders: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(item.path for item in items):
        folders.setdefault(path.parent, []).append(path)
    places = {file: (n + 0.5) / len(files) for files in folders.values() for n, file in enumerate(files)}
    items.sort(key=lambda item: (places[item.path], item.path))


def _mark_rows(item: pytest.Item, rows: Counter[str]) -> None:
    """Marks the rows of a table that are not in the quick lane, and those that are not in CI's, which has the quick
    lane's and every m-th. `rows`: those so far of each test."""
    thinned = item.get_closest_marker("thinned")
    if thinned is None or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return
    test = f"{item.path}::{item.originalname}"
    quick, every = (*thinned.args, 2)[:2]
    if rows[test] % quick:
        item.add_marker(pytest.mark.slow)
        if rows[test] % every:
            item.add_marker(pytest.mark.campaign)
    rows[test] += 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported by its end stays: the garbage collector need not look at it in every test."""
    with frozen_imports():
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names the tests that were rerun, and those that are too slow for the lane that they run in."""
    for report in terminalreporter.getreports("passed"):
        if report.when == "call" and report.duration > _QUICK_S and not {"slow", "campaign"} & {*report.keywords}:
            terminalreporter.write_line(f"{report.nodeid} took {report.duration:.0f} s: cheaper, or marked slow?")
    rerun = _rerun(terminalreporter)
    for test, tries in rerun.items():
        terminalreporter.write_line(f"rerun: {test} ({tries})")
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_line(f"why {report.nodeid} was rerun:")
        terminalreporter.write_line(indent(report.longreprtext[-_REASON:], "    "))
    if len(rerun) > _MOST_RERUNS:
        terminalreporter.write_line(f"{len(rerun)} tests were rerun, more than {_MOST_RERUNS}: this session failed")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(reporter, pytest.TerminalReporter) and len(_rerun(reporter)) > _MOST_RERUNS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _rerun(reporter: pytest.TerminalReporter) -> Counter[str]:
    """Reruns of each test that had any."""
    return Counter(report.nodeid for report in reporter.getreports("rerun"))


@cache
def _frozen(overrides: tuple[str, ...]) -> str:
    words = [f"+{word}" if word.startswith("python_path=") else word for word in overrides]
    config = without_hydra(Composer().loader.load_configuration("train", words, RunMode.RUN))
    if "_target_" not in config.model:  # ~model leaves the keys of train.yaml
        OmegaConf.update(config, "model", None)
    return OmegaConf.to_yaml(config, resolve=True)


@pytest.fixture(scope="session", autouse=True)
def commands_are_forked() -> Iterator[None]:
    """A command of Leyden's costs seconds of imports: one fork server of the session forks them, and their workers."""
    with forked_commands():
        yield


@pytest.fixture(scope="module", autouse=True)
def environment_is_put_back_after_the_module() -> Iterator[None]:
    """What fixtures of a module have run in this process."""
    yield from _put_back()


@pytest.fixture(autouse=True)
def environment_is_put_back() -> Iterator[None]:
    """Runs in this process set variables of Gloo and of the process group, and append the current folder to sys.path:
    what later tests would inherit, or pass by."""
    yield from _put_back()


def _put_back() -> Iterator[None]:
    path = list(sys.path)
    with restored_environment():
        yield
    sys.path[:] = path


@pytest.fixture(scope="module")
def composer() -> Composer:
    return Composer()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is the test's own. A command appends it to sys.path."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def seen() -> Iterator[list[Any]]:
    """What modules of lightning_examples.py note, in order."""
    lightning_examples.SEEN.clear()
    yield lightning_examples.SEEN
    lightning_examples.SEEN.clear()


@pytest.fixture
def freeze(tmp_path: Path) -> Freeze:
    """freeze("name", *overrides) -> a run folder with its frozen config."""

    def make(name: str, *overrides: str) -> Path:
        run_dir = tmp_path / name
        run_dir.mkdir()
        (run_dir / "config.yaml").write_text(_frozen(overrides))
        return run_dir

    return make


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished training with several checkpoints, to be copied."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text(_frozen((*TINY, "callbacks.checkpoint.keep_last=5")))
    assert start(run_dir) == 0
    return run_dir


@pytest.fixture(scope="session")
def pools() -> Iterator[Callable[[int], Pool]]:
    """pools(n) -> n warm workers, shared by all tests of the session."""
    made: dict[int, Pool] = {}

    def get(workers: int) -> Pool:
        return made.setdefault(workers, Pool(workers))

    yield get
    for pool in made.values():
        pool.stop()


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def agents() -> Iterator[list[Agent]]:
    """Agents of the test; none is left behind."""
    made: list[Agent] = []
    yield made
    for agent in made:
        agent.process.kill()
        agent.code()
        assert agent.process.stdout is not None
        agent.process.stdout.close()


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    """A real one of two nodes, for all tests of a file."""
    with pytest.MonkeyPatch.context() as patch:
        cluster = SlurmCluster()
        patch.setenv("SLURM_CONF", str(cluster.config))
        yield cluster
        cluster.stop()
