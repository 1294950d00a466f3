"""Parameter groups of the optimizer: by name patterns, by depth, and without weight decay."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from ...config.schema import Optimizer, ParameterGroup
from .layer_order import layers_above
from .name_patterns import matching
from .output_layer import output_parameters

Options = dict[str, dict[str, Any]]
"""Options by parameter name: those of its group that are not the optimizer's own."""


def group_options(task: nn.Module, settings: Optimizer, batch_size: int, constructor: Callable[..., Any]) -> Options:
    """What optimizer.groups, layer_decay and decay_bias_and_norm say of each parameter.

    To be asked before a strategy wraps or divides the modules.

    Args:
        constructor: of the optimizer. One that takes `orthogonalize` (Muon) gets it as false for the output layer,
            embeddings, tokens and positions.

    Raises:
        ValueError: a pattern that matches no parameter; a factor on a learning rate that is nowhere set.
    """
    names = [name for name, _ in task.named_parameters()]
    free = set() if settings.decay_bias_and_norm or "weight_decay" not in settings.arguments else undecayed_names(task)
    kept = _not_orthogonal(task) if "orthogonalize" in inspect.signature(constructor).parameters else set[str]()
    depths = {} if settings.layer_decay is None else layers_above(task)
    first = _first_matches(names, settings.groups)
    options: Options = {}
    for name in names:
        own: dict[str, Any] = {}
        if name in free:
            own["weight_decay"] = 0.0
        if name in kept:
            own["orthogonalize"] = False
        group = first.get(name)
        own.update({} if group is None else group.options)
        scale = 1.0 if group is None else group.lr_scale
        scale *= (settings.layer_decay or 1.0) ** depths.get(name, 0)
        if "lr" in own:
            own["lr"] = own["lr"] * scale * settings.batch_scale(batch_size)
        elif scale != 1.0:
            own["lr"] = scale * _usual_rate(settings.scaled_arguments(batch_size), constructor)
        options[name] = own
    return options


def parameter_groups(task: nn.Module, options: Options) -> list[Any]:
    """The optimizer's trained parameters, one group for each different set of options.

    Groups at the usual learning rate come first, decayed before undecayed ones: the first one's rate is logged.
    """
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in task.named_parameters():
        if parameter.requires_grad:
            own = options.get(name, {})
            groups.setdefault(repr(sorted(own.items())), {"params": [], **own})["params"].append(parameter)
    found = sorted(groups.values(), key=lambda group: ("lr" in group, "weight_decay" in group))
    return found[0]["params"] if len(found) == 1 and set(found[0]) == {"params"} else found


def _first_matches(names: Sequence[str], groups: Sequence[ParameterGroup]) -> dict[str, ParameterGroup]:
    found: dict[str, ParameterGroup] = {}
    for number, group in enumerate(groups):
        for pattern in group.patterns:
            for name in matching(names, pattern, f"optimizer.groups.{number}.match"):
                found.setdefault(name, group)
    return found


def _usual_rate(arguments: dict[str, Any], constructor: Callable[..., Any]) -> float:
    parameter = inspect.signature(constructor).parameters.get("lr")
    rate = arguments.get("lr", parameter.default if parameter is not None else None)
    if not isinstance(rate, int | float):
        raise ValueError("optimizer.groups and layer_decay scale the learning rate, which is nowhere set: optimizer.lr")
    return rate


def _not_orthogonal(task: nn.Module) -> set[str]:
    embeddings = {id(p) for module in task.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    shared = {name for name, parameter in task.named_parameters() if id(parameter) in embeddings}
    return {*output_parameters(task), *shared, *undecayed_names(task)}


def undecayed_names(task: nn.Module) -> set[str]:
    """Names of the parameters that weight decay leaves alone under optimizer.decay_bias_and_norm=false.

    Biases; normalization weights (anything of at most one dimension); what the task, the model or a module in it names
    in `no_weight_decay()`, as timm's models do, relative to itself; and what is one row for all samples, of shape
    (1, ...), such as a class token or position embedding. A weight matrix stays decayed whatever its shape: the head of
    a binary classifier is (1, features).
    """
    names: set[str] = set(_names_of_models(task))
    for name, parameter in task.named_parameters():
        own = name.rpartition(".")[2]
        if parameter.ndim <= 1 or own == "bias" or (parameter.shape[0] == 1 and "weight" not in own):
            names.add(name)
    return names


def _names_of_models(task: nn.Module) -> Iterator[str]:
    for prefix, module in task.named_modules():
        listed_names = getattr(module, "no_weight_decay", None)
        if callable(listed_names):
            for name in listed_names():  # pyright: ignore[reportGeneralTypeIssues]
                yield f"{prefix}.{name}" if prefix else str(name)
