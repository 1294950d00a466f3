"""`leyden prepare`: a dataset written as shards."""

import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..base.errors import CannotStart, ConfigError, refuse
from ..base.paths import shorten_path
from ..base.printable import printable
from ..compose.composer import Composer
from ..compose.reference.yaml_library import Library

if TYPE_CHECKING:
    from ..config.schema import Config

KEYS = "prepare"
"""The YAML file with what is written: its class, keys and defaults."""
_LINE_S = 10.0
_REFRESH_S = 0.2


def prepare_shards(words: Sequence[str], config_dir: str | None) -> int:
    """Write the dataset of a config as shards; words of the file `prepare.yaml` say how, all others are overrides.

    Raises:
        ConfigError: a mistake in the words, data that cannot be read, or a folder that cannot be written.
    """
    values, overrides = _divide_words(words)
    if values["out"] == "???":
        raise refuse("out", "must be named: the folder of the shards", remedy="leyden prepare dataset=... out=SHARDS")
    config = Composer(config_dir).run(overrides).config
    try:
        preparation = _plan_shards(config, values)
        needed = preparation.check()
    except CannotStart as error:
        raise error.as_config_error() or refuse("dataset", str(error), executed=True) from error
    except (ValueError, OSError) as error:
        raise _as_config_error(error, values) from error
    out = shorten_path(Path(values["out"]))
    if not needed:
        print(f"{out} is complete: {preparation.samples:,} images")
        return 0
    try:
        with _progress() as progress:
            left_out = preparation.run(progress)
    except (ValueError, OSError) as error:
        print(f"leyden: {printable(str(error))}\n  what is whole stays: the same command goes on", file=sys.stderr)
        return 1
    print(f"{out}: {preparation.samples - left_out:,} images" + (f", {left_out:,} left out" if left_out else ""))
    print(f"leyden dataset=shards dataset.root={out} trains from them")
    return 0


def _divide_words(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Values of the keys of `prepare.yaml`, and the overrides of the config."""
    values = {name: key.value for name, key in Library().file(KEYS).keys.items()}
    overrides: list[str] = []
    for word in words:
        name, equals, text = word.partition("=")
        if equals and name in values and name != "_target_":
            values[name] = text if name == "out" else _value(text)
        else:
            overrides.append(word)
    return values, overrides


def _value(text: str) -> Any:
    if re.fullmatch(r"-?\d{1,9}", text):
        return int(text)
    return None if text == "null" else text


def _plan_shards(config: "Config", values: Mapping[str, Any]) -> Any:
    """The object that writes the shards of every split."""
    from ..config.faults import build_checked
    from ..config.schema import Target
    from ..config.targets import build, is_data_module, make_importable

    make_importable(config)
    if is_data_module(config.dataset.target):
        raise refuse("dataset", "is a LightningDataModule, which has no images by index", config.dataset.target,
                     "dataset=image_folder")  # fmt: skip
    whole = build_checked("dataset", config.dataset, split="train")
    others = [split for split in whole.splits if split != "train"]
    sources = {"train": whole, **{split: build_checked("dataset", config.dataset, split=split) for split in others}}
    return build(
        Target.model_validate(values),
        sources=sources,
        source=f"{config.dataset.target} {sorted(config.dataset.arguments.items())}",
        max_bad_samples=config.dataset.max_bad_samples,
    )


def _as_config_error(error: Exception, values: Mapping[str, Any]) -> ConfigError:
    """The error of a key, if the message begins with it and its value."""
    key, equals, text = str(error).partition("=")
    value = str(values.get(key))
    if equals and key in values and text.startswith(f"{value} "):
        return refuse(key, text.removeprefix(f"{value} "), value, executed=True)
    return refuse("out" if isinstance(error, OSError) else "dataset", str(error), executed=True)


@contextmanager
def _progress() -> Generator[Callable[[int, int, int], None], None, None]:
    """What shows progress: a bar on a terminal, a line every ten seconds elsewhere."""
    if not sys.stdout.isatty():
        yield _Lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (MofNCompleteColumn(), TextColumn("images"), BarColumn(None), TextColumn("{task.fields[size]}"))
    with Progress(*columns, TimeRemainingColumn(), expand=True, refresh_per_second=4) as bar:
        task, began = bar.add_task("", total=None, size=""), [0.0]

        def show(done: int, total: int, size: int) -> None:
            if monotonic() > began[0] + _REFRESH_S or done == total:
                began[0] = monotonic()
                bar.update(task, completed=done, total=total, size=f"{size / 1e6:,.0f} MB")

        yield show


class _Lines:
    """Progress in lines."""

    def __init__(self) -> None:
        self._began = self._last = monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int, size: int) -> None:
        if self._first is None:
            self._first = done
        now = monotonic()
        if now < self._last + _LINE_S:
            return
        self._last = now
        rate = (done - self._first) / (now - self._began)
        print(f"{done:,} of {total:,} images, {size / 1e6:,.0f} MB, {rate:,.0f} images/s", flush=True)
