"""The modules of a network that are compiled or checkpointed each by itself."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from ...base.errors import join_names


def repeated_blocks(network: nn.Module) -> list[nn.Module]:
    """Composite modules that an nn.Sequential or nn.ModuleList holds at least two of, of one class.

    Of nested ones the inner: the blocks of a stage rather than the stages. A layer without layers inside is no block.
    """
    found: list[nn.Module] = []
    for module in network.modules():
        if isinstance(module, nn.Sequential | nn.ModuleList):
            children = [child for child in module if next(child.children(), None) is not None]
            kinds = [type(child) for child in children]
            found += [child for child in children if kinds.count(type(child)) > 1]
    chosen = {id(block): block for block in found}
    return [block for block in chosen.values() if not any(id(m) in chosen for m in block.modules() if m is not block)]


def named_blocks(network: nn.Module, names: Sequence[str], key: str) -> list[nn.Module]:
    """Modules of the given classes or names, the outermost of nested ones.

    Args:
        names: names of classes, or patterns of dotted names such as blocks.*
        key: of the config, for messages.

    Raises:
        ValueError: a name that is no module's.
    """
    missing = [name for name in names if not any(_is_called(n, m, name) for n, m in network.named_modules() if n)]
    if missing:
        kinds = sorted({type(block).__name__ for block in network.modules() if block is not network})
        raise ValueError(
            f"{key}: no module of {type(network).__name__} has the class or name {join_names(missing)}; its classes "
            f"are {join_names(kinds)}"
        )
    return list(_outermost(network, names, ""))


def _outermost(module: nn.Module, names: Sequence[str], path: str) -> Iterator[nn.Module]:
    for own, child in module.named_children():
        name = f"{path}.{own}" if path else own
        if any(_is_called(name, child, wanted) for wanted in names):
            yield child
        else:
            yield from _outermost(child, names, name)


def _is_called(name: str, module: nn.Module, wanted: str) -> bool:
    return type(module).__name__ == wanted or fnmatchcase(name, wanted)
