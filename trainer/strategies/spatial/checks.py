"""Configs that strategy=spatial cannot train, found before anything starts."""

from collections.abc import Iterator
from math import prod
from typing import Any

from ...base.errors import Problem
from ...config.schema import Config
from ...config.targets import is_data_module
from .grid import Grid


def problems(config: Config) -> Iterator[Problem]:
    """Problems of the grid, the model, the precision and the dataset."""
    workers, grid = config.topology.workers, config.strategy.arguments.get("grid")
    if grid is not None and (not _is_grid(grid) or prod(grid) != workers):
        best = Grid.of(workers)
        text = f"must be two whole numbers, rows and columns of workers, whose product is the {workers} workers"
        yield Problem("strategy.grid", text, grid, f"strategy.grid=[{best.gy},{best.gx}]")
    if config.model is None or not (config.model.parallel or {}).get("tiled"):
        value = config.model.target if config.model is not None else None
        text = "has no part that can be tiled: parallel.tiled in its YAML names the modules"
        yield Problem("model", text, value, "model=local_net or model=cots_autoencoder")
    if config.trainer.compile:
        text = "strategy=spatial moves halos inside the model's forward, which cannot be compiled"
        yield Problem("trainer.compile", text, True, "trainer.compile=false")
    if config.trainer.activation_checkpointing:
        text = "strategy=spatial moves halos inside the model's forward, which cannot be computed again"
        yield Problem("trainer.activation_checkpointing", text, True, "trainer.activation_checkpointing=false")
    if config.trainer.precision.startswith("16-"):
        text = "each worker would scale the loss by the overflows of its own tiles"
        remedy = f"trainer.precision=bf16-{config.trainer.precision.removeprefix('16-')}"
        yield Problem("trainer.precision", text, config.trainer.precision, remedy)
    if not config.trainer.exact_dropout and workers > 1:
        text = "a sample's units are divided among the workers of strategy=spatial, which must drop them by one mask"
        yield Problem("trainer.exact_dropout", text, False, "trainer.exact_dropout=true")
    yield from _data_problems(config)


def _is_grid(value: Any) -> bool:
    numbers = isinstance(value, (list, tuple)) and len(value) == 2
    return numbers and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in value)


def _data_problems(config: Config) -> Iterator[Problem]:
    if is_data_module(config.dataset.target):
        text = "divides its samples among the workers, and every worker of strategy=spatial reads the whole batch"
        yield Problem("dataset", text, config.dataset.target, "a dataset that is no LightningDataModule")
