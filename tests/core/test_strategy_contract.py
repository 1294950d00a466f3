"""The contract of strategies: what a class declares, hooks that cannot get lost, strategies of Lightning's own."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from contract_examples import FSDPOnCPU
from folders import CONF
from lightning.fabric import Fabric
from pool import Pool
from runs import TINY, Freeze, distance, weights

from leyden.trainer.cli.main import main
from leyden.trainer.compose.reopen import change, open_run, read_changes, write_changes
from leyden.trainer.config.locate import locate
from leyden.trainer.config.schema import load
from leyden.trainer.config.strategy_class import HOOKS, Processes, StrategyDeclarations, hook_problems
from leyden.trainer.core.strategy_contract import StrategyContract, contract_of
from leyden.trainer.entrypoints.start import start
from leyden.trainer.strategies.declarations import DECLARATIONS

TWO = "topology.devices_per_node=2"
SHORT = ["trainer.precision=64-true", "trainer.max_steps=4", "batch_size=48", "trainer.gradient_clip_val=0.5"]
SHIPPED = sorted({yaml.safe_load(file.read_text())["_target_"] for file in (CONF / "strategy").glob("*.yaml")})


def test_every_hook_has_its_name_on_the_list() -> None:
    own = {name for base in (StrategyContract, StrategyDeclarations) for name in (*vars(base), *base.__annotations__)}
    assert {name for name in own if not name.startswith("_")} - {"fabric"} == set(HOOKS)


@pytest.mark.parametrize("target", SHIPPED, ids=lambda target: target.rpartition(".")[2])
def test_a_shipped_strategy_declares_before_its_import_what_its_class_declares(target: str) -> None:
    declared, cls = DECLARATIONS[target.removeprefix("leyden.trainer.strategies.")], locate(target)
    assert issubclass(cls, StrategyContract)
    assert issubclass(cls, declared)
    for name in ("needs_divisible_batch", "max_workers", "replicates_parameters", "can_recompute"):
        assert getattr(cls, name) == getattr(declared, name)
    for name in ("processes", "server_processes"):
        assert getattr(getattr(cls, name, None), "__func__", None) is getattr(
            getattr(declared, name, None), "__func__", None
        )
    assert not list(hook_problems(cls))


USERS = """
from lightning.fabric.strategies import DDPStrategy
from leyden.trainer.core.strategy_contract import StrategyContract
from leyden.trainer.strategies.easgd import EASGD
from leyden.trainer.strategies.single import Single


class Misspelt(StrategyContract, DDPStrategy):
    def eval_weight(self, task):
        ...


class Plain(DDPStrategy):
    def eval_weights(self, task):
        ...


class PlainAndMisspelt(DDPStrategy):
    def flush_pending_update(self, task):
        ...


class Fits(StrategyContract, DDPStrategy):
    def eval_weights(self, task):
        return super().eval_weights(task)

    def backward(self, tensor, module, *args, **kwargs):
        super().backward(tensor, module, *args, **kwargs)

    def bandwidth(self):
        return 1.0

    def _eval_weight(self):
        ...


class Servers(Single):
    def __init__(self, servers=1, form="server", elastic=False, simulate=False):
        super().__init__()


class MyEASGD(EASGD):
    pass


class Pairs(StrategyContract, DDPStrategy):
    max_workers = 2
    needs_divisible_batch = False


class Failing(StrategyContract, DDPStrategy):
    @classmethod
    def processes(cls, arguments, topology):
        raise RuntimeError("no idea")
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user's strategies, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "my_strategies", raising=False)
    (tmp_path / "my_strategies.py").write_text(USERS)
    return tmp_path


MISTAKES = {
    "Misspelt": ("Misspelt defines eval_weight, which nothing calls", "the hook of StrategyContract is eval_weights"),
    "Plain": ("Plain defines eval_weights, a hook of Leyden's StrategyContract", "class Plain(StrategyContract, DDP"),
    "PlainAndMisspelt": ("defines flush_pending_update, which nothing calls", "def flush_pending_updates, or"),
    "Pairs topology.devices_per_node=3": ("strategy=Pairs trains on at most 2 workers, but the topology has 3",),
    "Failing": ("RuntimeError: no idea",),
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_hook_that_nothing_would_call_is_refused_before_the_start(
    mine: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    name, *more = command.split()
    assert main([f"strategy._target_=my_strategies.{name}", *TINY, *more]) == 2
    told = capsys.readouterr().err
    for text in MISTAKES[command]:
        assert text in told
    assert not (mine / "outputs").exists()


def test_a_strategy_that_fits_may_have_methods_of_its_own(mine: Path) -> None:
    assert not list(hook_problems(locate("my_strategies.Fits")))


def test_arguments_of_a_users_strategy_start_no_processes(mine: Path) -> None:
    given = ["+strategy.servers=2", "+strategy.elastic=true", "+strategy.simulate=true"]
    short = ["trainer.max_steps=2", "trainer.enable_progress_bar=false", "hydra.run.dir=run"]
    assert main(["strategy._target_=my_strategies.Servers", *given, *TINY, *short]) == 0
    frozen = yaml.safe_load((mine / "run/config.yaml").read_text())["processes"]
    assert frozen == {"workers": 1, "servers": 0, "elastic": False, "simulated": False}


ANSWERS = {
    "my_strategies.MyEASGD strategy.form=server": (2, 1, False, False),
    "my_strategies.MyEASGD strategy.form=server strategy.execution.servers=3 strategy.execution.elastic=true": (
        2,
        3,
        True,
        False,
    ),
    "my_strategies.MyEASGD strategy.execution.elastic=true": (2, 0, False, False),
    "leyden.trainer.strategies.asgd.ASGD strategy.execution.simulate=true": (1, 0, False, True),
    "leyden.trainer.strategies.local_sgd.LocalSGD": (2, 0, False, False),
    "lightning.fabric.strategies.DDPStrategy": (2, 0, False, False),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_processes_that_are_not_frozen_are_asked_of_the_class(mine: Path, freeze: Freeze, case: str) -> None:
    target, *options = case.split()
    options = [f"++{option}" for option in options]
    config = load(freeze("run", *TINY, TWO, f"strategy._target_={target}", *options, f"python_path=[{mine}]"))
    assert (config.worker_processes, config.servers, config.elastic, config.simulated) == ANSWERS[case]


def test_a_resumed_runs_processes_are_those_of_its_new_topology(mine: Path) -> None:
    short = ["trainer.max_steps=2", "trainer.enable_progress_bar=false", "hydra.run.dir=run"]
    assert main(["strategy._target_=my_strategies.Servers", *TINY, *short]) == 0
    changes = read_changes(["strategy=asgd", "strategy.execution.servers=2", TWO])
    run = open_run("run", changes.given)
    change(run, changes)
    assert run.validate_reopened().servers == 2
    with write_changes(run, changes):
        assert load(run.folder).processes == Processes(workers=2, servers=2)
    # and of a file that was written by hand
    (run.folder / "resume.yaml").write_text("- changed: {topology.devices_per_node: 3}\n")
    assert load(run.folder).processes == Processes(workers=3)


Pools = Callable[[int], Pool]


@pytest.mark.slow
def test_lightnings_ddp_trains_as_one_worker_does(freeze: Freeze, pools: Pools) -> None:
    options = [*TINY, *SHORT]
    one = freeze("one", *options)
    two = freeze("two", *options, TWO, "strategy._target_=lightning.fabric.strategies.DDPStrategy")
    assert start(one) == 0
    pools(2).run(two)
    assert distance(weights(one), weights(two)) <= 1e-10


def test_lightnings_fsdp_stands_behind_the_defaults() -> None:
    """Without a training: torch's own FSDP needs an accelerator."""
    contract = contract_of(Fabric(accelerator="cpu", devices=1, strategy=FSDPOnCPU()))
    assert type(contract) is StrategyContract
    assert (contract.forward_is_collective, contract.max_step_skew, contract.ledger) == (False, 1, None)
    assert not contract.updates_pending()
    assert contract.ticket_source is None
