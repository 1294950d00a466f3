"""Which layers of a network are a divided head, and what a worker computes and holds of them."""

from collections.abc import Mapping, Sequence

from torch import nn

from ...core.traffic import Workload
from ...core.transfers import DeviceShare, DividedModule, ExtraMemory
from .sharded_head import linears
from .traffic import Scheme


def divided_layers(workload: Workload, sharded: Sequence[str]) -> tuple[dict[str, list[nn.Linear]], list[nn.Parameter]]:
    """The divided layers by the path of their chain, and the trained parameters of the trunk.

    Args:
        sharded: modules of the model, as its YAML names them.

    Raises:
        ValueError: the network has no such module.
    """
    network = workload.network
    paths = [_path_in(network, name) for name in sharded]
    heads = {path: linears(path, network.get_submodule(path)) for path in paths}
    rows = {id(p) for layers in heads.values() for linear in layers for p in linear.parameters()}
    return heads, [p for p in workload.parameters if id(p) not in rows]


def _path_in(network: nn.Module, name: str) -> str:
    """The path of a module of the model, in the model itself or in a task around it."""
    paths = [path for path, _ in network.named_modules() if path == name or path.endswith(f"model.{name}")]
    if not paths:
        raise ValueError(f"model.parallel.sharded: the network has no module {name!r}")
    return min(paths, key=len)


def head_share(
    heads: Mapping[str, Sequence[nn.Linear]], scheme: Scheme, workers: int, samples: int, item_bytes: int
) -> DeviceShare:
    """The whole trunk for the worker's own samples, and of each head layer 1/K of the rows for those of all K workers,
    which is as much arithmetic.

    Args:
        heads: divided layers, by the path of their chain.
        samples: b, of each worker in a step.
        item_bytes: of one activation.
    """
    passes = 1 if scheme == "a" else workers
    in_pass = samples * workers // passes
    divided: list[DividedModule] = []
    gathered = rows = 0.0
    for path, layers in heads.items():
        most = max(-(-layer.out_features // workers) / layer.out_features for layer in layers)
        divided.append(DividedModule(path, most * workers, most, passes))
        widths = [layers[0].in_features, *(layer.out_features for layer in layers[:-1])]
        gathered += in_pass * item_bytes * sum(widths)
        rows += most * sum(p.nbytes for layer in layers for p in layer.parameters())
    extra = ExtraMemory("activations gathered for the head", gathered), ExtraMemory("gradients of own rows", rows)
    return DeviceShare(samples, tuple(divided), extra=extra)
