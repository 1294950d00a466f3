"""`leyden inspect data`: what is found in a dataset, as data.json keeps it, without a training."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from ...base.errors import as_config_errors, refuse
from ...base.printable import printable
from ...compose.composer import Composer
from ...config.schema import TASK_LOADERS, Config


def print_data(overrides: Sequence[str], config_dir: str | None) -> int:
    """Print splits, samples by class, and files left out by reason, once all files have been looked at.

    Raises:
        ConfigError: a mistake in the config, data that cannot be read, or more bad files than it allows.
    """
    config = Composer(config_dir).run(overrides).config
    with as_config_errors("dataset"):
        _print(config)
    return 0


def _print(config: Config) -> None:
    from ...config.targets import is_data_module, make_importable
    from ...data.contents.file_check import look_at_files, refuse_unreadable
    from ...data.contents.found import count_samples, describe_found
    from ...data.splits import Splits

    make_importable(config)
    if config.dataset.target == TASK_LOADERS or is_data_module(config.dataset.target):
        text = "has loaders of its own, whose lengths a run says"
        raise refuse("dataset", text, config.dataset.target, "dataset=image_folder dataset.root=PHOTOS")
    splits = Splits.of(config.dataset)
    looked = look_at_files(splits, (0, 1), config.dataset.check_files_s)
    refuse_unreadable(looked, looked.problems, config.dataset)
    found = count_samples(splits, config.dataset.val_fraction)
    for line in [*describe_found(found), *map(printable, looked.problems)]:
        print(line)
    counts = {name: split["classes"] for name, split in found["splits"].items() if split and "classes" in split}
    if counts:
        table = Table("class", *counts, box=box.SIMPLE)
        for each in counts["train"]:
            table.add_row(printable(each), *(f"{split[each]:,}" for split in counts.values()))
        Console(soft_wrap=True, markup=False, highlight=False).print(table)
