"""The layer whose output a network returns."""

from torch import nn


def output_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Names and parameters of the output layer: the module registered last of those with a weight of two dimensions."""
    last, found = "", None
    for name, module in network.named_modules():
        if any(parameter.ndim > 1 for parameter in module.parameters(recurse=False)):
            last, found = name, module
    own = () if found is None else found.named_parameters(recurse=False)
    return {f"{last}.{name}" if last else name: parameter for name, parameter in own}
