"""Which parameters the weight decay acts on."""

from typing import Any

from torch import nn


def parameter_groups(task: nn.Module, settings: dict[str, Any], decay_all: bool) -> list[Any]:
    """The optimizer's parameters.

    Args:
        settings: the optimizer's arguments.
        decay_all: as one group; else those that `undecayed` names are a second group, without weight decay.
    """
    named = [(name, parameter) for name, parameter in task.named_parameters() if parameter.requires_grad]
    if decay_all or "weight_decay" not in settings:
        return [parameter for _, parameter in named]
    free = undecayed(task)
    kinds = [[p for name, p in named if name not in free], [p for name, p in named if name in free]]
    decays = [settings["weight_decay"], 0.0]
    return [{"params": group, "weight_decay": decay} for group, decay in zip(kinds, decays, strict=True) if group]


def undecayed(task: nn.Module) -> set[str]:
    """Names of the parameters that weight decay leaves alone under optimizer.decay_bias_and_norm=false.

    Biases; normalization weights (anything of at most one dimension); what the task, the model or a module in it names
    in `no_weight_decay()`, as timm's models do, relative to itself; and what is one row for all samples, of shape
    (1, ...), such as a class token or position embedding. A weight matrix stays decayed whatever its shape: the head of
    a binary classifier is (1, features).
    """
    names: set[str] = set()
    for prefix, module in task.named_modules():
        listed = getattr(module, "no_weight_decay", None)
        if callable(listed):
            names.update(f"{prefix}.{name}" if prefix else str(name) for name in listed())  # pyright: ignore[reportGeneralTypeIssues]
    for name, parameter in task.named_parameters():
        own = name.rpartition(".")[2]
        if parameter.ndim <= 1 or own == "bias" or (parameter.shape[0] == 1 and "weight" not in own):
            names.add(name)
    return names
