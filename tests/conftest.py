"""Frozen runs without the command line, and processes that end with the test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agents import Agent
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from pool import Pool
from runs import Freeze, Processes
from slurm_cluster import SlurmCluster


@pytest.fixture
def freeze(tmp_path: Path) -> Freeze:
    """freeze("name", *overrides) -> a run folder with its frozen config."""

    def make(name: str, *overrides: str) -> Path:
        run_dir = tmp_path / name
        run_dir.mkdir()
        with initialize_config_module("leyden.conf", version_base=None):
            config = compose("train", overrides=[f"+{o}" if o.startswith("python_path=") else o for o in overrides])
        (run_dir / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
        return run_dir

    return make


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
