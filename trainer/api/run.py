"""A run in its folder: config, metrics, predictions."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import join_names, refuse
from ..base.paths import absolute, shorten_path
from ..compose.reopen import DEVICE_KIND, FrozenRun, change, open_run, read_changes
from ..config.schema import Config
from ..runs.summary import read_summary
from .settings import verb_settings

if TYPE_CHECKING:
    from torch import Tensor

    from ..engine.inference.predictor import Predictor
    from .predictions import Prediction

CHANGEABLE = ("dataset.root", "dataset.max_bad_samples", DEVICE_KIND)
"""Keys that inference may change: none of them changes what the network computes."""
_ONE_DEVICE = ("strategy=single", "topology=local")


class Run:
    """A run in its folder. Nothing heavy is imported before a prediction, and nothing is written into the folder.

    Args:
        named: folder of the run, or a checkpoint in it.
        overrides: `dataset.root=`, `dataset.max_bad_samples=` or `topology.device.kind=`, for this process alone.
        best: take the best checkpoint by callbacks.checkpoint.monitor in place of the newest.

    Raises:
        ConfigError: there is no such run, its config cannot be read, or another key is named.
    """

    def __init__(self, named: str | Path, *overrides: str, best: bool = False):
        self._frozen = _reopen_run(str(named), overrides)
        self._best = best
        if best and self._frozen.checkpoint is not None:
            raise refuse("--best", "chooses a checkpoint, and one is named", str(named), shorten_path(self.folder))

    @property
    def folder(self) -> Path:
        return self._frozen.folder

    @property
    def summary(self) -> dict[str, Any]:
        """summary.json as it is now; {} before the run has begun."""
        return read_summary(self.folder)

    @property
    def status(self) -> str | None:
        """running, done, failed, preempted, interrupted or refused; None: it has not begun."""
        return self.summary.get("status")

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of each metric that the run has recorded in summary.json."""
        return dict(self.summary.get("metrics") or {})

    @cached_property
    def config(self) -> Config:
        """The run's config for one device.

        Raises:
            ConfigError: it cannot run here, or belongs to another user and names what only --trust allows.
        """
        return self._frozen.validate_reopened()

    @cached_property
    def predictor(self) -> "Predictor":
        """The network with the weights that evaluation uses.

        Raises:
            ConfigError: no checkpoint, parts of the run that cannot be built here, or a task without `forward`.
        """
        return self._build_predictor(scores=True)

    @cached_property
    def trained(self) -> "Predictor":
        """The predictor of a run of any task: unlike `predictor`'s it may compute no scores."""
        return self._build_predictor(scores=False)

    def _build_predictor(self, scores: bool) -> "Predictor":
        config = self.config
        if config.doctor is not None or config.pipeline is not None:
            raise refuse("RUN", "trains no network of its own", shorten_path(self.folder), "a trial of the sweep")
        # not at the top: a mistake in the config does not wait for torch
        from ..base.errors import CannotStart
        from ..engine.inference.predictor import Predictor

        try:
            return Predictor(config, self.folder, self._frozen.checkpoint, self._best, scores)
        except CannotStart as error:
            raise error.as_config_error() or refuse(
                "RUN", str(error), shorten_path(self.folder), executed=True
            ) from error

    def predict(
        self, images: Any, *, top: int | None = None, skipped: Callable[[str], None] | None = None
    ) -> "list[Prediction]":
        """The most probable classes of images.

        Args:
            images: path of a file, a folder or an archive; or images in memory, uint8 (batch, channels, height, width),
                of the run's own size, a tensor or an array. Float images are inputs of the network already.
            top: classes of each image; None: as conf/predict.yaml says.
            skipped: gets the reason of each unreadable file; None: a line on standard error.

        Raises:
            ConfigError: as `predictor`, or more files are unreadable than dataset.max_bad_samples.
            ValueError: the task computes no class scores, or the images have another shape.
        """
        settings = prediction_settings({} if top is None else {"top": top})
        if isinstance(images, str | Path):
            return self.predict_files(images, settings, skipped)
        predictor = self.predictor
        from .predict import predict_memory

        return predict_memory(predictor, images, settings)

    def predict_files(
        self,
        root: str | Path,
        settings: Mapping[str, Any],
        skipped: "Callable[[str], None] | None" = None,
        seen: "Callable[[Tensor], None]" = lambda images: None,
    ) -> "list[Prediction]":
        """Predict images in memory, as `predict` does a path.

        Args:
            settings: as `prediction_settings` returns them.
            seen: gets the prepared images of each batch, uint8 (batch, channels, height, width).
        """
        config, predictor = self.config, self.predictor
        from .predict import predict_path

        return predict_path(predictor, config, str(root), settings, skipped, seen)

    def export(self, kind: str, out: str | Path | None = None) -> Path:
        """Write the network for other programs: uint8 images in, class scores out; see docs/using-runs.md.

        Args:
            kind: safetensors, pt2, onnx or int8.
            out: the file; None: `network` with the format's suffix in the current folder.

        Returns:
            The file, whose outputs on images of the run's test set are the run's own within 1e-4 (int8: which lose at
            most a point of accuracy).

        Raises:
            ConfigError: another format, a package that is missing, a network that cannot be written in it.
        """
        return self.export_and_check(kind, out)[0]

    def export_and_check(self, kind: str, out: str | Path | None = None) -> tuple[Path, str]:
        """Export the run, and return what the check of the outputs has found, too. See `export`."""
        file = _export_file(kind, out)
        config, predictor = self.config, self.predictor
        from ..base.errors import CannotStart
        from ..engine.inference.export import export
        from ..engine.kernels import hold_kernels

        try:
            with hold_kernels(config):
                return file, export(predictor, config, kind, file)
        except CannotStart as error:
            raise refuse("RUN", str(error), shorten_path(self.folder), executed=True) from error
        except OSError as error:
            raise refuse("--out", f"cannot be written: {error}", shorten_path(file), executed=True) from error

    def __repr__(self) -> str:
        return f"Run({shorten_path(self.folder)!r}, status={self.status!r})"


def load(run: "str | Path | Run", *overrides: str, best: bool = False) -> Run:
    """A run by its folder, by a checkpoint in it, or again; arguments and errors are those of `Run`."""
    return Run(run.folder if isinstance(run, Run) else run, *overrides, best=best)


FORMATS = {"safetensors": ".safetensors", "pt2": ".pt2", "onnx": ".onnx", "int8": ".int8.onnx"}
"""Formats of `export`, and the suffixes of their files."""


def _export_file(kind: str, out: str | Path | None) -> Path:
    if kind not in FORMATS:
        raise refuse("--format", f"must be {join_names(list(FORMATS))}", kind, "--format onnx")
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    if missing and kind in ("onnx", "int8"):
        raise refuse("--format", f"needs {join_names(missing)}, not installed here", kind, "pip install 'leyden[onnx]'")
    file = absolute(f"network{FORMATS[kind]}" if out is None else out)
    if not file.parent.is_dir() or file.is_dir():
        raise refuse("--out", "must be a file in a folder that exists", str(out), f"--out network{FORMATS[kind]}")
    return file


def prediction_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the keys of conf/predict.yaml.

    Raises:
        ConfigError: a value is no whole number, or too small.
    """
    return verb_settings("predict", given, may_be_zero=("sheet",))


def _reopen_run(named: str, overrides: Sequence[str]) -> FrozenRun:
    """The run for one device of this machine, with the overrides applied in memory."""
    for override in overrides:
        key, equals, value = override.partition("=")
        if key not in CHANGEABLE or not equals:
            text = "a network is used as it was trained; only " + ", ".join(CHANGEABLE) + " may differ"
            raise refuse(key, text, value if equals else ..., f"leave out {override}")
    run = open_run(named)
    changes = read_changes([*_ONE_DEVICE, *(word for word in overrides if word.startswith(f"{DEVICE_KIND}="))])
    for key, value in (word.split("=", 1) for word in overrides if word.startswith("dataset.")):
        changes.dotted[key] = _value(key, value)
    run.values.pop("processes", None)
    change(run, changes)
    return run


def _value(key: str, text: str) -> Any:
    if not key.endswith("max_bad_samples"):
        return text
    if not text.isdecimal() or len(text) > 9:
        raise refuse(key, "must be a whole number of at least 0", text, f"{key}=10")
    return int(text)
