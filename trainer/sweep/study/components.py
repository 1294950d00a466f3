"""Sampler and pruner of a study, built of the nodes hydra.sweeper.sampler and hydra.sweeper.pruner."""

import inspect
import random
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler, QMCSampler, RandomSampler
from pydantic import ValidationError

from ...base.errors import ConfigError, join_names, nearest, raise_all, refuse
from ...compose.leftover_keys import Leftover, leftovers
from ...compose.provenance import Origin
from ...compose.signatures import node_problems, unknown_arguments
from ...config.schema import Target
from ...config.targets import build, find

_NAMES = {
    "sampler": ("TPESampler", "RandomSampler", "GPSampler", "BruteForceSampler", "CmaEsSampler", "NSGAIISampler",
                "QMCSampler"),
    "pruner": ("NopPruner", "MedianPruner", "PercentilePruner", "SuccessiveHalvingPruner", "HyperbandPruner",
               "PatientPruner", "ThresholdPruner"),
}  # fmt: skip
_STARTUP = 10
"""Trials that samplers draw at random first, unless they say how many."""
_OTHER = "other values, or hydra/sweeper/{}=..."


def without_leftovers(kind: str, node: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """The node of a sampler or pruner without what Leyden's own YAML sets for the class in whose place it stands."""
    key = f"hydra.sweeper.{kind}"
    try:
        target = Target.model_validate(node)
    except ValidationError:
        return dict(node)
    found = [Leftover(key, name, target.target) for name in unknown_arguments(key, target)]
    dropped = {each.name for each in leftovers(found, origin)}
    return {name: value for name, value in node.items() if name not in dropped}


class SamplerFactory:
    """Sampler of a study.

    With a seed, each trial is chosen by a sampler of its own, seeded by (seed, number of the trial): an interrupted
    study goes on with the draws that it would have made.

    Args:
        node: hydra.sweeper.sampler.

    Raises:
        ConfigError: there is no such sampler, or it does not take an argument.
    """

    def __init__(self, node: Mapping[str, Any]):
        self._node = dict(node)
        self._sampler: BaseSampler = _build_component("sampler", node, BaseSampler)
        # a sequence of low discrepancy is one for the whole study
        self._reseeded = isinstance(node.get("seed"), int) and not isinstance(self._sampler, QMCSampler)

    def of_trial(self, number: int) -> BaseSampler:
        """Sampler that chooses a trial."""
        if not self._reseeded:
            return self._sampler
        seed = random.Random(f"{self._node['seed']} {number}").getrandbits(31)
        return build(Target.model_validate({**self._node, "seed": seed}))

    def rehearse(self, space: Mapping[str, BaseDistribution]) -> None:
        """Choose a trial of a space, after those that are drawn at random, for a study that is not kept.

        Raises:
            ConfigError: the sampler cannot choose: a package of its own is missing, or the space is none for it.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study, sampler = optuna.create_study(sampler=RandomSampler(0)), SamplerFactory(self._node).of_trial(0)
        for number in range(int(self._node.get("n_startup_trials") or _STARTUP)):
            study.tell(study.ask(dict(space)), float(number))
        study.sampler = sampler
        try:
            study.ask(dict(space))
        except (ImportError, ValueError) as error:
            text, name = f"cannot choose trials: {error}", type(sampler).__name__
            missing = error.name if isinstance(error, ImportError) else ""
            remedy = f"pip install {missing}" if missing else _OTHER.format("sampler")
            raise refuse("hydra.sweeper.sampler", text, name, remedy) from error


def pruner_node(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """The checked node hydra.sweeper.pruner; None for one that prunes nothing.

    Raises:
        ConfigError: there is no such pruner, or it does not take an argument.
    """
    return None if isinstance(_build_component("pruner", node, BasePruner), NopPruner) else dict(node)


def _build_component(kind: str, node: Mapping[str, Any], base: type) -> Any:
    key = f"hydra.sweeper.{kind}"
    try:
        target = Target.model_validate(node)
    except ValidationError:
        raise _no_such(kind, node.get("_target_")) from None
    cls = find(key, target)
    if not inspect.isclass(cls) or not issubclass(cls, base):
        raise _no_such(kind, target.target)
    raise_all(node_problems(key, target))
    try:
        return build(target)
    except Exception as error:
        raise refuse(key, f"{cls.__name__} cannot be built: {error}", remedy=_OTHER.format(kind)) from error


def _no_such(kind: str, target: Any) -> ConfigError:
    names, package = _NAMES[kind], f"optuna.{kind}s"
    close = nearest(str(target).rpartition(".")[2], names) or names[0]
    text = f"is no {kind} of Optuna; {package} has {join_names(names)} and others"
    return refuse(f"hydra.sweeper.{kind}._target_", text, target, f"hydra.sweeper.{kind}._target_={package}.{close}")
