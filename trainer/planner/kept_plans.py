"""Plans that were made, kept until a run of the same config ends: predicted beside measured. No torch."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..base.atomic_file import write_atomically
from ..config.hub_weights import weights_cache
from ..config.schema import Config
from .costs.cost_cache import without_folders
from .costs.fingerprint import fingerprint
from .plans import TrainingPlan, summarize

_NODES = ("model", "task", "optimizer", "augment", "strategy")
_READ = ("step_ms", "low_ms", "high_ms", "exposed_ms")


def keep(config: Config, plan: TrainingPlan) -> None:
    """Keep a plan that `leyden plan` has printed."""
    file = _file(config)
    with suppress(OSError):  # a cache that cannot be written is none
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(summarize(plan)))


def newest_plan(config: Config) -> Mapping[str, Any] | None:
    """The newest plan of a config; None: there was none, or Leyden's code is another since then."""
    try:
        found = json.loads(_file(config).read_text())
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and all(isinstance(found.get(name), int | float) for name in _READ)
    return found if whole else None


def _file(config: Config) -> Path:
    nodes = {name: getattr(config, name) for name in _NODES}
    topology = config.topology.model_dump(include={"nodes", "devices_per_node", "device", "links", "fabric"})
    values = {
        **{name: None if node is None else node.model_dump(by_alias=True) for name, node in nodes.items()},
        "batch_size": config.batch_size,
        "dataset": without_folders(config),
        "topology": topology,
        "precision": config.trainer.precision,
        "parts": config.trainer.accumulate_grad_batches,
    }
    return weights_cache() / "plans" / f"plan-{fingerprint(values, config.python_path)}.json"
