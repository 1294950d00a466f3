"""Strategies against one device: the same weights after a few steps, in float64."""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from .checks import Check
from .child_runs import NotTrained, Outcome, weights_of
from .plan import Plan

LIMIT = 1e-10
"""Limit of |a - b| / |b|, norms over a tensor, after five steps."""

SHORT = (
    "trainer.precision=64-true", "trainer.max_steps=5", "trainer.max_epochs=1", "trainer.limit_val_batches=0",
    "trainer.limit_test_batches=0", "trainer.enable_progress_bar=false", "callbacks.checkpoint.monitor=null",
    "dataset=digits", "augment=none", "task=classification", "schedule=constant", "optimizer=sgd", "optimizer.lr=0.05",
    "optimizer.momentum=0.9", "optimizer.weight_decay=0.01",
)  # fmt: skip
_SMALL = (
    *SHORT, "model=vgg_small", "model.stages=[[4],[6]]", "model.hidden=[19,13]", "model.dropout=0.3",
    "dataset.image_size=8",
)  # fmt: skip
NETWORKS: Mapping[str, Sequence[str]] = {
    "convolutions": _SMALL,
    # local steps have momentum of their own, which workers do not exchange
    "convolutions, without momentum": (*_SMALL, "optimizer.momentum=0.0"),
    "local filters": (
        *SHORT, "model=local_net", "model.maps=[4,3]", "model.rf=4", "model.lcn=3", "model.dropout=0.3",
        "dataset.image_size=16",
    ),
}  # fmt: skip
_FIRST = next(iter(NETWORKS))
CASES: Mapping[str, tuple[str, Sequence[str]]] = {
    "ddp": (_FIRST, ()),
    "butterfly": (_FIRST, ("strategy.lazy=true",)),
    "butterfly, eager": (_FIRST, ("strategy.lazy=false",)),
    "fsdp": (_FIRST, ("strategy.min_parameters=1",)),
    "hybrid": (_FIRST, ()),
    "local_sgd": ("convolutions, without momentum", ("strategy.h=1",)),
    "spatial": ("local filters", ()),
}
"""The network and the options in which a strategy equals `single`. A strategy of the user's has the first network."""


Outcomes = Mapping[str, Outcome]
"""Outcomes by the name of a training."""


def plan_strategies(plan: Plan, cases: Sequence[str], workers: int) -> None:
    """Add a training of each strategy, and of `single` for each of their networks."""
    for case in cases:
        plan.on_all(folder_of(case), overrides(case, workers))
    for network in dict.fromkeys(network_of(case) for case in cases):
        plan_reference(plan, network, workers)


def plan_reference(plan: Plan, network: str, workers: int) -> None:
    """Add the training of one device that the strategies on a network are compared with."""
    plan.on_one(_reference(network), [*NETWORKS[network], _batch(workers), "strategy=single"])


def overrides(case: str, workers: int) -> list[str]:
    """Overrides of a strategy's training over all workers."""
    options = CASES[case][1] if case in CASES else ()
    return [*NETWORKS[network_of(case)], _batch(workers), f"strategy={case.partition(',')[0]}", *options]


def strategy_checks(outcomes: Outcomes, cases: Sequence[str]) -> Iterator[Check]:
    """Each strategy against `single`, then lazy against eager updates."""
    for case in cases:
        yield _strategy_check(case, outcomes[folder_of(case)], outcomes[_reference(network_of(case))])
    lazy, eager = (outcomes.get(folder_of(case)) for case in ("butterfly", "butterfly, eager"))
    if lazy is not None and eager is not None and lazy.error is None and eager.error is None:
        apart = distance(weights_of(lazy.folder), weights_of(eager.folder))
        yield Check("butterfly: lazy = eager", apart, 0.0, apart == 0.0, 0.0, "bit for bit")


def _strategy_check(case: str, trained: Outcome, reference: Outcome) -> Check:
    """A strategy against `single`; skipped where it refuses the topology."""
    name = f"{case} = single"
    try:
        apart = distance(weights_of(trained.check()), weights_of(reference.check()))
    except NotTrained as error:
        text = f"skipped: {error}" if error.refused else str(error)
        return Check(name, None, LIMIT, None if error.refused else False, trained.seconds, text)
    return Check(name, apart, LIMIT, apart <= LIMIT, trained.seconds, "largest relative distance")


def network_of(case: str) -> str:
    """The network on which a strategy is checked."""
    return CASES[case][0] if case in CASES else _FIRST


def folder_of(case: str) -> str:
    """The name of a strategy's training."""
    return case.replace(", ", "-")


def _reference(network: str) -> str:
    return f"single-{list(NETWORKS).index(network)}"


def _batch(workers: int) -> str:
    return f"batch_size={24 * workers}"


def distance(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Largest relative distance of two sets of tensors; infinite where names, shapes or finiteness differ."""
    if found.keys() != expected.keys() or any(found[n].shape != expected[n].shape for n in expected):
        return float("inf")
    largest = 0.0
    for name, tensor in expected.items():
        one, other = found[name].double(), tensor.double()
        apart = float((one - other).norm() / max(1e-30, float(other.norm())))
        largest = max(largest, apart if apart == apart else float("inf"))
    return largest
