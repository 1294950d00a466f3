"""Which blocks of a network are gathered, used and dropped at a time."""

from collections import Counter
from collections.abc import Iterator

from torch import nn

_NEVER_OPENED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""Their forward reads the weights of their children without calling them."""


def units(network: nn.Module, min_parameters: int) -> dict[nn.Module, list[nn.Parameter]]:
    """Blocks of a network, cut from the inside out, of at least `min_parameters` parameters each and few more.

    A block is a module with a forward, and holds what no block inside it holds. Parameters that several modules share
    are of a block only with all of these modules.

    Returns:
        Each block's own parameters, inner blocks first; last the network itself, with the rest.
    """
    everything = set(network.parameters())
    owners = _owners(network)
    taken: set[nn.Parameter] = set()
    found: dict[nn.Module, list[nn.Parameter]] = {}
    for module in _inside_out(network):
        own = [parameter for parameter in module.parameters() if parameter not in taken]
        if module is not network:
            inside = _owners(module)
            closed = all(inside[parameter] == owners[parameter] for parameter in own)
            callable_ = type(module).forward is not nn.Module.forward
            large = sum(parameter.numel() for parameter in own) >= min_parameters
            # one block that is all there is would be gathered for its backward right after its forward
            if not (own and large and closed and callable_) or everything == set(module.parameters()):
                continue
        found[module] = own
        taken.update(own)
    return found


def _inside_out(module: nn.Module) -> Iterator[nn.Module]:
    if not isinstance(module, _NEVER_OPENED):
        for child in module.children():
            yield from _inside_out(child)
    yield module


def _owners(module: nn.Module) -> Counter[nn.Parameter]:
    """How many modules hold each parameter directly."""
    return Counter(parameter for child in module.modules() for parameter in child.parameters(recurse=False))
