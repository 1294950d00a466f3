"""What strategy=hybrid refuses of a config, before anything starts."""

from collections.abc import Iterator
from typing import Any

from ...base.errors import Problem
from ...config.schema import Config


def problems(config: Config) -> Iterator[Problem]:
    """Every mistake that the config alone shows; `Hybrid.setup_module` finds those of the built model."""
    given = config.strategy.arguments
    scheme = given.get("scheme", "a")
    if given.get("sharded_lr_scale", 1.0) <= 0:
        yield Problem("strategy.sharded_lr_scale", "must be greater than 0", given["sharded_lr_scale"],
                      "strategy.sharded_lr_scale=1.0")  # fmt: skip
    yield from _is_sharded(config, scheme)
    yield from _batch(config, scheme)
    yield from _update_period(config, given.get("update_period"), passes(config, scheme))
    if config.topology.workers > 1:
        if config.trainer.activation_checkpointing:
            text = "strategy=hybrid exchanges activations inside the model's forward, which cannot be computed again"
            yield Problem("trainer.activation_checkpointing", text, True, "trainer.activation_checkpointing=false")
        yield from _only_one_device(config)
        yield from _dropout(config)


def _dropout(config: Config) -> Iterator[Problem]:
    if not config.trainer.exact_dropout:
        text = "a sample's units are divided among the workers of strategy=hybrid, which must drop them by one mask"
        yield Problem("trainer.exact_dropout", text, False, "trainer.exact_dropout=true")


def passes(config: Config, scheme: str) -> int:
    """Passes of the head in a full step."""
    parts = config.trainer.accumulate_grad_batches
    return parts if scheme == "a" else parts * config.topology.workers


def _is_sharded(config: Config, scheme: str) -> Iterator[Problem]:
    if config.model is None:
        text = "strategy=hybrid divides a model's fully connected head, and this task brings its own network"
        yield Problem("model", text, None, "strategy=ddp")
        return
    sharded: Any = (config.model.parallel or {}).get("sharded")
    key, name = "model.parallel.sharded", config.model.target.rpartition(".")[2]
    if not sharded:
        text = f"{name} names no part that can be divided: a chain of Linear layers with activations and Dropout"
        yield Problem(key, text, sharded, "model=alexnet_owt, which does, or '+model.parallel.sharded=[NAME]' with "
                      "the name of the module, or strategy=ddp")  # fmt: skip
    elif not isinstance(sharded, list) or not all(isinstance(item, str) for item in sharded):
        yield Problem(key, "must be a list of names of modules", sharded, "model.parallel.sharded=[classifier]")
    elif scheme == "b" and len(sharded) > 1:
        text = f"scheme b takes turns in one head, and these are {len(sharded)}: their turns would wait for each other"
        yield Problem("strategy.scheme", text, "b", "strategy.scheme=c, which sends the same bytes")


def _batch(config: Config, scheme: str) -> Iterator[Problem]:
    workers, parts = config.topology.workers, config.trainer.accumulate_grad_batches
    divisor = workers * parts * (workers if scheme == "c" else 1)
    if config.batch_size % divisor == 0:
        return
    factors = f"{workers} workers" + (f" x {workers} passes of scheme c" if scheme == "c" else "")
    factors += f" x {parts} accumulate_grad_batches" if parts > 1 else ""
    below = config.batch_size // divisor * divisor
    remedy = " or ".join(f"batch_size={size}" for size in (below, below + divisor) if size)
    yield Problem("batch_size", f"is the global batch and must be divisible by {factors}", config.batch_size, remedy)


def _update_period(config: Config, period: int | None, whole: int) -> Iterator[Problem]:
    if period is None:
        return
    key = "strategy.update_period"
    if period < 1 or whole % period:
        allowed = [str(number) for number in range(1, whole + 1) if whole % number == 0]
        text = f"must divide the {whole} passes of the head in a step (scheme, workers, accumulate_grad_batches)"
        yield Problem(key, text, period, f"{key}=" + (" or ".join(allowed[-4:]) + ", or null"))
    elif period < whole:
        often = f"the head is updated {whole // period} times a step"
        if config.trainer.gradient_clip_val is not None:
            text = f"clipping needs all gradients of a step together, and {often}"
            yield Problem("trainer.gradient_clip_val", text, config.trainer.gradient_clip_val, f"{key}=null")
        if config.trainer.log_grad_norm:
            text = f"the norm is that of all gradients of a step together, and {often}"
            yield Problem("trainer.log_grad_norm", text, True, f"{key}=null")


def _only_one_device(config: Config) -> Iterator[Problem]:
    if config.trainer.precision == "16-mixed":
        text = "scales the loss until it overflows, and each worker would judge its own part of the head's gradients"
        yield Problem("trainer.precision", text, "16-mixed", "trainer.precision=bf16-mixed")
