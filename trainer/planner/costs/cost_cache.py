"""Costs of strategies, kept from one command to the next. No torch, but where a strategy has to be asked."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...base.atomic_file import write_atomically
from ...config.hub_weights import weights_cache
from ...config.schema import DATA_FOLDERS, Config
from ...core.transfers import DeviceShare, DividedModule, ExtraMemory, Transfer
from .fingerprint import fingerprint

_OF_TOPOLOGY = ("nodes", "devices_per_node", "server_placement")
_OF_TRAINER = ("precision", "accumulate_grad_batches")


def load_costs(config: Config) -> tuple[tuple[Transfer, ...], DeviceShare]:
    """Transfers of a step, and the share of one device.

    Raises:
        CannotStart: as `strategy_costs`.
    """
    file = _file(config)
    known = _read(file)
    if known is None:
        from .strategy_costs import strategy_costs

        found = strategy_costs(config)
        known = found.transfers, found.share
        _write(file, known)
    return known


def find_costs(config: Config) -> tuple[tuple[Transfer, ...], DeviceShare] | None:
    """The same, where they are at hand without torch."""
    return _read(_file(config))


def without_folders(config: Config) -> dict[str, Any]:
    """The dataset's values without the places of its files."""
    return {key: value for key, value in config.dataset.model_dump(by_alias=True).items() if key not in DATA_FOLDERS}


def _file(config: Config) -> Path:
    values: dict[str, Any] = {
        "batch_size": config.batch_size,
        "dataset": without_folders(config),
        "topology": {
            **{key: getattr(config.topology, key) for key in _OF_TOPOLOGY},
            "kind": config.topology.device.kind,
        },
        "trainer": {key: getattr(config.trainer, key) for key in _OF_TRAINER},
    }
    for name in ("model", "task", "strategy", "augment"):
        node = getattr(config, name)
        values[name] = None if node is None else node.model_dump(by_alias=True)
    return weights_cache() / "plans" / f"costs-{fingerprint(values, config.python_path)}.json"


def _read(file: Path) -> tuple[tuple[Transfer, ...], DeviceShare] | None:
    try:
        content = json.loads(file.read_text())
        transfers = tuple(_transfer(values) for values in content["transfers"])
        return transfers, _share(content["share"])
    except (OSError, ValueError, KeyError, TypeError):  # not there, or damaged: counted again
        return None


def _transfer(values: Mapping[str, Any]) -> Transfer:
    return Transfer(**{**values, "overlaps": tuple(values["overlaps"])})


def _share(values: Mapping[str, Any]) -> DeviceShare:
    divided = tuple(DividedModule(*each) for each in values["divided"])
    extra = tuple(ExtraMemory(*each) for each in values["extra"])
    return DeviceShare(**{**values, "divided": divided, "extra": extra})


def _write(file: Path, costs: tuple[tuple[Transfer, ...], DeviceShare]) -> None:
    transfers, share = costs
    content = {"transfers": [asdict(each) for each in transfers], "share": _plain(share)}
    with suppress(OSError):  # a cache that cannot be written is none
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(content))


def _plain(share: DeviceShare) -> dict[str, Any]:
    return {**vars(share), "divided": [list(each) for each in share.divided], "extra": [list(e) for e in share.extra]}
