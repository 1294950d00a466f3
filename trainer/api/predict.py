"""Predictions of a run for a path, or for images in memory."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..base.errors import CannotStart, refuse
from ..base.paths import exists
from ..config.schema import Config
from ..core.batch import BadSamples
from ..engine.inference.predictor import Predictor
from .predictions import Prediction, open_photographs, predict_files, rank_classes


def predict_path(
    predictor: Predictor,
    config: Config,
    root: str,
    settings: Mapping[str, Any],
    skipped: Callable[[str], None] | None = None,
    seen: Callable[[torch.Tensor], None] = lambda images: None,
) -> list[Prediction]:
    """Predictions of every photograph below a path.

    Args:
        settings: of conf/predict.yaml.
        skipped: gets the reason of each unreadable one; None: a line on standard error.
        seen: gets the prepared images of each batch.

    Raises:
        ConfigError: there are none, too many are unreadable, or the run cannot be built.
    """
    if not exists(root):
        raise refuse("PHOTOS", "there is no such file or folder", root, "an image, a folder, a .zip or a .tar")
    most = config.dataset.max_bad_samples
    try:
        source = open_photographs(predictor, config, settings["_target_"], root)
        return list(
            predict_files(predictor, source, settings["top"], settings["batch_size"], most, skipped or _warn, seen)
        )
    except BadSamples as error:
        text = f"unreadable photograph: {error}; dataset.max_bad_samples={most} are skipped"
        raise refuse("PHOTOS", text, root, f"dataset.max_bad_samples={most + 10}", executed=True) from None
    except CannotStart as error:
        problem = error.problem
        raise refuse("PHOTOS", problem.text if problem else str(error), root, executed=True) from error
    except (ValueError, OSError) as error:
        raise refuse("RUN", str(error), executed=True) from error


def predict_memory(predictor: Predictor, images: Any, settings: Mapping[str, Any]) -> list[Prediction]:
    """Predictions of images in memory: a tensor or an array (batch, channels, height, width).

    Raises:
        ValueError: another shape or type.
    """
    batch = images if isinstance(images, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(images))
    allowed = batch.dtype is torch.uint8 or batch.is_floating_point()
    if batch.ndim != 4 or not allowed or tuple(batch.shape[1:]) != predictor.image_shape:
        wanted = ", ".join(map(str, predictor.image_shape))
        given = f"{batch.dtype} {list(batch.shape)}".removeprefix("torch.")
        raise ValueError(
            f"images={given} must be uint8 (batch, {wanted}), or float inputs of the network; files: a path"
        )
    found: list[Prediction] = []
    for start in range(0, len(batch), settings["batch_size"]):
        part = batch[start : start + settings["batch_size"]]
        files = [str(start + number) for number in range(len(part))]
        found += rank_classes(predictor.probabilities(part), files, predictor.class_names, settings["top"])
    return found


def _warn(problem: str) -> None:
    print(f"skipped an unreadable photograph: {problem}", file=sys.stderr)
