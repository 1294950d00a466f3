"""How long a config trains, from its keys alone: samples of an epoch, and steps. No torch."""

from math import ceil

from ..config.schema import Config


def train_samples(config: Config) -> int | None:
    """Samples of an epoch: as assumed, or as a dataset is given them to make; None: not known."""
    made = config.dataset.arguments.get("samples")
    return config.dataset.assumed.train_samples or (made if isinstance(made, int) else None)


def steps_per_epoch(config: Config) -> int | None:
    """Optimizer steps of an epoch; None: the number of samples is not known (dataset.assumed.train_samples)."""
    limit = config.trainer.train_limit
    samples = train_samples(config)
    if samples is None:
        return limit if isinstance(limit, int) else None
    steps = samples // config.batch_size if config.dataset.drop_last else ceil(samples / config.batch_size)
    return min(limit, steps) if isinstance(limit, int) else max(1, int(limit * steps))


def training_steps(config: Config) -> int | None:
    """Optimizer steps of the training; None: not known."""
    if config.trainer.fast_dev_run:
        return 1
    most, each = config.trainer.max_steps, steps_per_epoch(config)
    known = [] if each is None else [each * config.trainer.max_epochs]
    return min([*known, *([most] if most > 0 else [])], default=None)
