"""A worker killed and its run resumed; hosts that wait for their devices."""

from collections.abc import Iterator, Sequence

from .checks import Check
from .child_runs import NotTrained, weights_of
from .equality import Outcomes, distance
from .plan import Plan

_FAULTS = "leyden.trainer.components.callbacks.faults"
KILLED = "killed"
"""File that KillOnce leaves in the run folder."""
UNBROKEN, RESUMED, WAITS = "uninterrupted", "killed", "host-waits"


def plan_recovery(plan: Plan, overrides: Sequence[str], on_gpu: bool) -> None:
    """Add a training whose last worker is killed after its third step, and one that is not.

    Args:
        overrides: of a training of five steps.
    """
    every_step = [*overrides, "callbacks.checkpoint.every_n_steps=1", "trainer.deterministic=true"]
    plan.on_all(UNBROKEN, every_step)
    plan.on_all(RESUMED, [*every_step, f"+callbacks.kill._target_={_FAULTS}.KillOnce", "topology.max_restarts=1"])
    if on_gpu:  # a CPU's calls all wait
        # between two logs, which come every 50 steps
        refuse = f"+callbacks.waits._target_={_FAULTS}.RefuseHostWaits"
        plan.on_all(WAITS, [*overrides, "trainer.max_steps=12", refuse])


def recovery_checks(outcomes: Outcomes) -> Iterator[Check]:
    """The weights of the killed training against those of the other, and whether a step waits for its GPU."""
    yield _check_resumption(outcomes)
    if WAITS in outcomes:
        name, waits = "no host wait between two logs", outcomes[WAITS]
        yield Check(name, None, None, waits.error is None, waits.seconds, str(waits.error or ""))


def _check_resumption(outcomes: Outcomes) -> Check:
    name, resumed = "killed and resumed = uninterrupted", outcomes[RESUMED]
    try:
        apart = distance(weights_of(resumed.check()), weights_of(outcomes[UNBROKEN].check()))
    except NotTrained as error:
        return Check(name, None, 0.0, False, resumed.seconds, str(error))
    if not (resumed.folder / KILLED).exists():
        return Check(name, apart, 0.0, False, resumed.seconds, "no worker was killed")
    return Check(name, apart, 0.0, apart == 0.0, resumed.seconds, "bit for bit")
