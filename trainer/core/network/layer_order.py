"""Depth of each parameter in a network, in the order in which the model registers its blocks."""

from torch import nn

from .blocks import repeated_blocks


def layers_above(network: nn.Module) -> dict[str, int]:
    """Number of layers between each parameter and the output, by its name; 0 for the head.

    A layer is a repeated block (Bottleneck, encoder block), or each module with parameters of a network without them.
    What is registered before the first block (stem, tokens, positions) is one layer below it, between two blocks it
    belongs to the next, after the last (final normalization, classifier) it is the head.
    """
    blocks = repeated_blocks(network) or [m for m in network.modules() if list(m.parameters(recurse=False))][:-1]
    number = {id(p): index for index, block in enumerate(blocks, 1) for p in block.parameters()}
    depths: dict[str, int] = {}
    reached = 0
    for name, parameter in network.named_parameters():
        inside = number.get(id(parameter))
        reached = max(reached, inside or 0)
        between = 0 if reached == 0 else reached + 1
        depths[name] = len(blocks) + 1 - (between if inside is None else inside)
    return depths
