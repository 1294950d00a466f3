"""Validation of easgd, asgd and local_sgd configs before the start."""

import pytest
from runs import HERE, TINY, Freeze

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.compose.checks import check_classes, check_values
from leyden.trainer.config.schema import load

pytestmark = pytest.mark.thinned(2)

TWO = "topology.devices_per_node=2"
SERVER = "strategy.form=server"
EXECUTION = "strategy.execution."


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["easgd", "strategy.form=servers"], ["strategy.form = servers", "did you mean server?"]),
        (["easgd", "strategy.difference=befor"], ["strategy.difference = befor", "did you mean before?"]),
        (["easgd", "strategy.tau=0"], ["strategy.tau = 0", "at least 1", "strategy.tau=1"]),
        (["easgd", "strategy.beta=2.5"], ["strategy.beta = 2.5", "at most the number of workers, 2"]),
        (["easgd", EXECUTION + "elastic=true"], [".elastic", "needs servers", "strategy.form=server"]),
        (["easgd", EXECUTION + "record=true"], [".record", "that of one server", EXECUTION + "record=false"]),
        (["easgd", SERVER, EXECUTION + "elastic=true", "callbacks=[default,ema]"],
         ["callbacks.ema", "restarted one has lost it", EXECUTION + "elastic=false"]),
        (["easgd", "trainer.sync_batchnorm=true"], ["trainer.sync_batchnorm", "do not wait", "=false"]),
        (["easgd", SERVER, EXECUTION + "replay=nowhere.csv", EXECUTION + "simulate=true"],
         ["no such file", "events.csv"]),
        (["easgd", SERVER, EXECUTION + "replay=/dev/null"], [EXECUTION + "replay", EXECUTION + "simulate=true"]),
        (["easgd", EXECUTION + "simulate=true", "dataset.num_workers=2"], ["dataset.num_workers = 2", "prefetched"]),
        (["easgd", EXECUTION + "delay=exponentially"], [EXECUTION + "delay=exponential", "mean exponential?"]),
        (["easgd", EXECUTION + "link_mbit_s=0"], [EXECUTION + "link_mbit_s = 0", "greater than 0"]),
        (["easgd", EXECUTION + "servers=0"], [EXECUTION + "servers = 0", "at least 1"]),
        (["easgd", EXECUTION + "servers=two"], [EXECUTION + "servers = two", "must be a whole number or null"]),
        (["easgd", "+" + EXECUTION + "simulat=true"],
         [EXECUTION + "simulat", "did you mean simulate?", EXECUTION + "simulate=true"]),
        (["easgd", "strategy.execution=simulated"], ["strategy.execution = simulated", "must hold keys: servers"]),
        (["local_sgd", "+" + EXECUTION + "servers=2"],
         [EXECUTION + "servers = 2", "local_sgd has none", "form=server"]),
        (["asgd", "strategy.n_push=0"], ["strategy.n_push = 0", "at least 1"]),
        (["asgd", "strategy.max_staleness=0"], ["strategy.max_staleness = 0", "at least 1", "=1"]),
        (["asgd", "strategy.max_staleness=2", "strategy.n_push=2"], ["n_fetch and n_push must be equal"]),
        (["asgd", "strategy.warm_start_steps=5"], ["warm_start_steps = 5", "multiple", "=4"]),
        (["asgd", "trainer.precision=16-mixed"], ["trainer.precision", "a factor of its own"]),
        (["asgd", "optimizer._target_=torch.optim.LBFGS", "~optimizer.momentum", "~optimizer.weight_decay",
          "~optimizer.nesterov"], ["LBFGS's step needs a closure"]),
        (["asgd", EXECUTION + "elastic=true", "schedule=plateau"], ["schedule.monitor", "joins later"]),
        (["local_sgd", "strategy.h=0"], ["strategy.h = 0", "strategy.h=1"]),
        (["local_sgd", "strategy.h_rule=ada"], ["did you mean adacomm?"]),
        (["local_sgd", "strategy.outer_momentum=1"], ["strategy.outer_momentum = 1", "less than 1"]),
        (["local_sgd", "strategy.outer_lr=0"], ["strategy.outer_lr = 0", "greater than 0"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and "=" in value[-1] else "",
)  # fmt: skip
def test_refused(freeze: Freeze, options: list[str], words: list[str]) -> None:
    config = load(freeze("run", *TINY, f"strategy={options[0]}", TWO, *options[1:]))
    with pytest.raises(ConfigError) as raised:
        check_classes(config)
    for word in words:
        assert word in str(raised.value)


def test_asynchronous_workers_cannot_use_a_data_module(freeze: Freeze) -> None:
    here = HERE
    module = ["dataset._target_=lightning_examples.Points", "~dataset.samples", "~dataset.classes",
              "~dataset.image_shape", "dataset=synthetic"]  # fmt: skip
    config = load(freeze("run", *TINY[:2], *module, "strategy=asgd", TWO, here))
    with pytest.raises(ConfigError, match="asynchronous workers draw theirs from"):
        check_classes(config)


def test_more_simulated_workers_than_this_machine_could_run(freeze: Freeze) -> None:
    check_values(load(freeze("run", *TINY, "strategy=local_sgd", "strategy.execution.simulate=true", "batch_size=128",
                             "topology.devices_per_node=16", "topology.nodes=4")))  # fmt: skip
