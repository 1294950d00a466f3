"""Initial weights: init_from, model.pretrained, and those that a network takes from the training images."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..base.errors import join_names
from ..base.log import log
from ..config.hub_weights import digest_of
from ..config.schema import PinnedWeights
from ..core.checkpoints.checkpoint_content import is_dense, not_finite
from ..core.checkpoints.checkpoint_io import newest, read, shards_of
from ..core.checkpoints.sharded_checkpoint import together
from ..core.network.trained_network import network_of
from ..core.protocols import ComputesWeights, HasPublicNames
from ..core.state import RunState

_MOST_IMAGES = 5000
"""Images that a network may take weights from: as many as airbench94 takes."""
_MOST_VALUES = 1 << 24
"""Values of all these images, 64 MB: of large images there are fewer."""
_COUNTER = "num_batches_tracked"
"""A counter of BatchNorm that old public files lack and no forward of ours reads."""


def load_initial_weights(state: RunState) -> None:
    """Start from what init_from or model.pretrained names, if either does. Every worker must call it.

    Raises:
        ValueError: it cannot be read, or does not fit.
    """
    config, own = state.config, state.contract.full_shapes(state.task)
    source = None if config.model is None else config.model.weights
    if source is None:
        _load_from_images(state)
    if source is not None:
        log.info(load_pretrained(state.task, source, own, whole=state.evaluates_only))
    elif config.init_from is not None:
        log.info(_load_what_fits(state.task, config.init_from, own, whole=state.evaluates_only))


def _load_from_images(state: RunState) -> None:
    """Load what a network with `weights_from_images(images)` computes of normalized training images."""
    network = network_of(state.task)
    if network is state.task or not isinstance(network, ComputesWeights):
        return
    images: Tensor | None = state.data.plain_images(_MOST_IMAGES, _MOST_VALUES)
    if images is None:
        text = "takes weights from the training images, and only Leyden's datasets give them without augmentation"
        raise ValueError(f"{type(network).__name__} {text}: dataset=cifar10, for example")
    computed = network.weights_from_images(images)
    weights = {f"model.{name}": value for name, value in computed.items()}
    if dist.is_initialized():  # another processor may round otherwise
        weights = {name: _of_first_worker(value, state.fabric.device) for name, value in weights.items()}
    _load(state.task, weights, "weights_from_images")
    log.info("%d of the training images gave %s", len(images), ", ".join(weights))


def _of_first_worker(value: Tensor, device: torch.device) -> Tensor:
    value = value.to(device)
    dist.broadcast(value, 0)
    return value


def _load_what_fits(task: nn.Module, source: str, own: Mapping[str, torch.Size], whole: bool) -> str:
    """init_from: every tensor of the task whose name and shape match; with `whole` all must. Returns one line."""
    weights = weights_of("init_from", source)
    names = _names_in(weights, task, own)
    taken = {name: weights[its] for name, its in names.items() if its in weights and weights[its].shape == own[name]}
    if not taken:
        raise ValueError(
            f"init_from={source}: none of its {len(weights)} tensors has name and shape of one of the {len(own)} here"
        )
    left = sorted(set(own) - set(taken))
    if whole:
        _refuse_fresh(f"init_from={source}", [name for name in left if not name.endswith(_COUNTER)])
    _load(task, taken, f"init_from={source}")
    rest = f"; started fresh: {', '.join(left[:6])}{' ...' if len(left) > 6 else ''}" if left else ""
    return f"init_from {source}: {len(taken)} of {len(own)} tensors{rest}"


def _refuse_fresh(what: str, names: list[str]) -> None:
    """Raise ValueError if there are tensors that an evaluation would take as they are drawn."""
    if names:
        text = "does not have all of a network for this data, and what is not trained cannot be evaluated"
        raise ValueError(f"{what} {text}: {join_names(names, 6)}")


def load_pretrained(
    task: nn.Module, source: str | PinnedWeights, own: Mapping[str, torch.Size], whole: bool = False
) -> str:
    """model.pretrained: every tensor of the network, except an output layer of another number of classes.

    Args:
        whole: that layer must fit, too.
    """
    named = source if isinstance(source, str) else source.source
    weights = weights_of("model.pretrained", source)
    of_model = {name: shape for name, shape in own.items() if name.startswith("model.")} or own
    taken, head = match_tensors(f"model.pretrained={named}", weights, _names_in(weights, task, of_model), of_model)
    if whole:
        _refuse_fresh(f"model.pretrained={named}", head)
    _load(task, taken, f"model.pretrained={named}")
    fresh = f"; the output layer starts fresh: {', '.join(head)}" if head else ""
    return f"model.pretrained {named}: {len(taken)} of {len(of_model)} tensors{fresh}"


def match_tensors(
    what: str, weights: Mapping[str, Tensor], names: Mapping[str, str], own: Mapping[str, torch.Size]
) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of a network among those of a file, all but an output layer of another number of classes.

    Args:
        what: names the weights, in messages.
        names: by name of the network's: that in the file.
        own: shapes of the network's tensors, in its order.

    Returns:
        The tensors by the network's names, and names in the output layer that the file does not have like this.

    Raises:
        ValueError: another tensor is missing, has another shape, or is one that the network does not have.
    """
    head = _output_layer(own)
    odd = {
        name: f"{tuple(weights[its].shape)} for {tuple(own[name])}" if its in weights else "missing"
        for name, its in names.items()
        if not (its in weights and weights[its].shape == own[name]) and not name.endswith(_COUNTER)
    }
    fresh = sorted(name for name in odd if name in head)
    if any(weights[names[name]].shape[1:] != own[name][1:] for name in fresh if names[name] in weights):
        fresh = []  # not the number of classes alone
    if fresh:
        fresh = sorted(head)  # weight and bias, though the bias alone might fit
    wrong = [f"{names[name]}: {text}" for name, text in odd.items() if name not in fresh]
    used = set(names.values())
    ours = any(its.startswith("model.") for its in used)
    wrong += [
        f"{its}: not in the network" for its in weights if its not in used and (its.startswith("model.") or not ours)
    ]
    if wrong or len(odd) == len(own):
        text = f"{what} does not fit the network, all of it but an output layer of another number of classes"
        raise ValueError(f"{text}: {'; '.join(wrong[:4])}{f' and {len(wrong) - 4} more' if len(wrong) > 4 else ''}")
    its = {name: names[name] for name in own if name not in odd and name not in fresh and names[name] in weights}
    return {name: weights[name_there] for name, name_there in its.items()}, fresh


def _output_layer(own: Mapping[str, torch.Size]) -> set[str]:
    """Names of weight and bias of the last layer that a network registers."""
    last = next((name for name in reversed(list(own)) if len(own[name]) > 1), "")
    module = last.rpartition(".")[0]
    return {name for name in own if last and name.rpartition(".")[0] == module}


def _names_in(weights: Mapping[str, Tensor], task: nn.Module, own: Iterable[str]) -> dict[str, str]:
    """The name in a file for each of the task's tensors, by the layout that names most of them there.

    A network with public weights of other names says so by `public_names(names)`: by layout, the name there for each.
    """
    own = list(own)
    layouts = [{name: name for name in own}, {name: name.removeprefix("model.") for name in own}]
    network = network_of(task)
    if network is not task and isinstance(network, HasPublicNames):
        inner = [name.removeprefix("model.") for name in own if name.startswith("model.")]
        layouts += [
            {f"model.{name}": its for name, its in names.items()} for names in network.public_names(inner).values()
        ]
    best = max(layouts, key=lambda names: sum(its in weights for its in names.values()))
    return {name: best.get(name, name) for name in own}


def _load(task: nn.Module, taken: dict[str, Tensor], what: str) -> None:
    broken = not_finite(taken)
    if broken is not None:
        raise ValueError(f"{what}: {broken} has NaN or infinite values")
    task.load_state_dict(taken, strict=False)


def weights_of(key: str, source: str | PinnedWeights) -> dict[str, Tensor]:
    """The tensors of a run, a checkpoint or a file of weights, in the layout of one device.

    Args:
        key: of the config, for messages.

    Raises:
        ValueError: it cannot be read, or is not the pinned one.
    """
    if isinstance(source, PinnedWeights):
        path = Path(source.path)
        _check_digest(key, source, path)
        if path.suffix == ".pth":  # of a package, known by its digest
            return torch.load(path, map_location="cpu", weights_only=True)
    else:
        path = Path(source)
    found = _tensors(key, path)
    return {name: value for name, value in found.items() if is_dense(value)}


def _check_digest(key: str, source: PinnedWeights, path: Path) -> None:
    text = f"{key}={source.source}: {path}"
    if not path.is_file():
        raise ValueError(f"{text} is not there; a LEYDEN_CACHE that all hosts share is needed where the run is frozen")
    digest = digest_of(path)
    if digest != source.sha256:
        raise ValueError(f"{text} has changed since the run was frozen: its SHA-256 is {digest}, not {source.sha256}")


def _tensors(key: str, path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if not path.is_file():
            raise ValueError(f"{key}={path} is not a file")
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{key}={path} cannot be read: {error}") from error
    if path.is_dir():
        found = newest(path, leads=False)
        if found is None:
            raise ValueError(f"{key}={path} holds no checkpoint")
        return _whole_model(*found)
    return _whole_model(path, read(path))


def _whole_model(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    divided = shards_of(path, content)
    return together(content["model"], divided, "model/")
