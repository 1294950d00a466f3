"""`leyden bench data`: speed of a data pipeline on this machine."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..base.errors import as_config_errors, refuse
from ..compose.composer import Composer
from ..config.schema import Config

if TYPE_CHECKING:
    from ..data.loading_bench import LoadingBench


def bench_data(overrides: Sequence[str], config_dir: str | None, as_json: bool) -> int:
    """Measure the training data of a config, and print the figures.

    Raises:
        ConfigError: a mistake in the config, or data that cannot be read.
    """
    config = Composer(config_dir).run(overrides).config
    with as_config_errors("dataset"):
        found = _measure_rates(config)
    if as_json:
        print(json.dumps(found.as_dict()))
        return 0
    print("\n".join(_lines(found, config)))
    return 0


def _measure_rates(config: Config) -> "LoadingBench":
    from ..config.targets import is_data_module, make_importable

    make_importable(config)
    if is_data_module(config.dataset.target):
        raise refuse("dataset", "is a LightningDataModule, which reads by its own loaders", config.dataset.target,
                     "dataset=image_folder")  # fmt: skip
    # not at the top: a mistake in the config does not wait for torch
    from ..data.loading_bench import measure

    return measure(config)


def _lines(found: "LoadingBench", config: Config) -> list[str]:
    speeds = found.images_per_second
    lines = [f"{found.images} training images in batches of {config.batch_size}, {found.cores} cores", ""]
    lines += [f"{'dataset.threads':32}{'images/s':>10}"]
    for number, speed in speeds.items():
        mark = "   fastest" if number == found.threads and len(speeds) > 1 else ""
        name = "0 (the loop itself)" if number == 0 else str(number)
        lines.append(f"{name:32}{speed:10.0f}{mark}")
    lines += ["", f"{'stage, on one thread':32}{'CPU ms an image':>16}"]
    lines += [f"{name:32}{milliseconds:16.3f}" for name, milliseconds in found.cpu_ms.items()]
    return lines
