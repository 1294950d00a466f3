"""Counted work and memory in a file: a plan that was made before needs no torch. Imports none by itself.

The file's name is a hash of what the counts depend on: the parts of the config, the versions, and the source files of
the classes that the config names.
"""

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..base.atomic_file import write_atomically
from ..config.hub_weights import weights_cache
from ..config.schema import Config
from ..hardware.topology import device_kind
from .counted_batches import Counted, CountedBatches
from .quantities import Cost, LayerWork, PeakMemory, StepWork

LINE = (512, 1024)
"""Batches that are counted beside those asked for: large ones, from which those beyond are extrapolated."""
_MANY = 5000
"""Operations of a step, from which on half the batch is counted in their place: a network that cuts its batch into
pieces makes more of them for a larger one."""
_FORMAT = 1
_TRAINER_KEYS = (
    "precision", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "activation_checkpointing",
    "channels_last", "exact_dropout",
)  # fmt: skip
_OWN_CODE = ("planner", "core/network", "core/keyed", "components/tasks", "components/optimizers")


def load_count(config: Config, batches: Iterable[int]) -> CountedBatches:
    """Work and memory of the step of one device, counted where the cache does not have it.

    Args:
        batches: samples of a device that are to be counted themselves; every other batch is answered from these.

    Raises:
        CannotStart: they must be counted, and the network cannot be run on fake tensors.
    """
    file = _file(config)
    counted = _read(file)
    wanted = sorted(batches)
    if not _is_line(counted, wanted):
        from .work import StepCounter  # imports torch

        counter = StepCounter(config)
        counted |= {batch: counter.count(batch) for batch in wanted if batch not in counted}
        many = any(_kernels(counted[batch][0]) > _MANY for batch in wanted)
        more = [max(1, batch // 2) for batch in wanted] if many else LINE
        counted |= {batch: counter.count(batch) for batch in more if batch not in counted}
        if len(counted) < 2:
            counted[LINE[0]] = counter.count(LINE[0])
        _write(file, counted)
    return CountedBatches(counted)


def _is_line(counted: Mapping[int, Counted], batches: Iterable[int]) -> bool:
    return {*batches} <= counted.keys() and len(counted) > 1


def _kernels(work: StepWork) -> int:
    return sum(layer.forward.kernels + layer.backward.kernels for layer in work.layers)


def is_counted(config: Config, batches: Iterable[int]) -> bool:
    """Whether `load_count` needs no torch."""
    return _is_line(_read(_file(config)), batches)


def _file(config: Config) -> Path:
    return weights_cache() / "plans" / f"{_digest(config)}.json"


def _digest(config: Config) -> str:
    values = config.model_dump(mode="json", by_alias=True)
    callbacks = {name: node and node["_target_"] for name, node in values["callbacks"].items()}
    dataset = {key: value for key, value in values["dataset"].items() if key not in ("root", "path", "data_dir")}
    parts: dict[str, Any] = {
        **{key: values[key] for key in ("model", "task", "optimizer", "augment", "python_path")},
        "callbacks": callbacks,
        "dataset": dataset,
        "trainer": {key: values["trainer"][key] for key in _TRAINER_KEYS},
        "device": device_kind(config.topology),
        "versions": [_FORMAT, *(version(package) for package in ("leyden", "torch", "lightning"))],
        "sources": list(_sources(config)),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _sources(config: Config) -> Iterator[Any]:
    """Size and time of the files beside which the classes are defined, and of Leyden's that build and count."""
    nodes = (config.model, config.task, config.optimizer, config.augment, config.dataset, *config.callbacks.values())
    folders = {_folder(node.target, config.python_path) for node in nodes if node is not None}
    folders |= {Path(__file__).parents[1] / folder for folder in _OWN_CODE}
    for folder in sorted(folder for folder in folders if folder is not None):
        with suppress(OSError):
            for file in sorted(folder.glob("*.py")):
                status = file.stat()
                yield [file.name, status.st_size, status.st_mtime_ns]


def _folder(target: str, python_path: Sequence[str]) -> Path | None:
    """Where a class is defined, without importing anything; None: in an installed package, which has a version."""
    top, *rest = target.split(".")[:-1]
    if top == "leyden":
        spec = importlib.util.find_spec("leyden")
        places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
        return next((p.joinpath(*rest[:-1]) for p in places if rest and p.joinpath(rest[0]).is_dir()), None)
    spec = PathFinder.find_spec(top, [*python_path, str(Path.cwd())])
    return None if spec is None or spec.origin is None else Path(spec.origin).parent.joinpath(*rest[:-1])


def _read(file: Path) -> dict[int, Counted]:
    try:
        return {int(batch): _from_json(*parts) for batch, parts in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, KeyError):  # not there, or of another's hand
        return {}


def _write(file: Path, counted: dict[int, Counted]) -> None:
    with suppress(OSError):  # a folder that cannot be written to costs the next plan a second
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps({batch: _to_json(*parts) for batch, parts in counted.items()}))


def _to_json(work: StepWork, memory: PeakMemory) -> list[Any]:
    layers = [[layer.name, _plain(layer.forward), _plain(layer.backward), layer.gradient_elements]
              for layer in work.layers]  # fmt: skip
    return [work.batch, layers, _plain(work.update), asdict(memory)]


def _from_json(batch: int, layers: list[Any], update: list[Any], memory: dict[str, float]) -> Counted:
    own = [LayerWork(name, Cost(*forward), Cost(*backward), gradients) for name, forward, backward, gradients in layers]
    return StepWork(batch, tuple(own), Cost(*update)), PeakMemory(**memory)


def _plain(cost: Cost) -> list[float]:
    return [cost.flop, cost.bytes, cost.kernels]
