"""Accuracy that is no better than chance, or far below that of training: said at a run's end."""

from collections.abc import Mapping
from math import sqrt

from ...config.schema import Config
from .found import Found

_PHOTOGRAPHS = 64
"""Pixels a side of images, from which they may be photographs."""


def not_learned(metrics: Mapping[str, float], found: Found, config: Config) -> str | None:
    """What is wrong with the validation's accuracy, and what helps; None: nothing, or there is no such metric."""
    accuracy, trained = metrics.get("val/acc"), metrics.get("train/acc")
    if accuracy is None or found.get("multi_label"):
        return None
    counts = list(((found["splits"].get("val") or {}).get("classes") or {}).values())
    samples = sum(counts)
    share = max(counts) / samples if samples else 0.0
    if samples and accuracy <= share + 2 * sqrt(share * (1 - share) / samples):
        text = f"is no better than the largest class alone, {share:.3f} of {samples:,} samples"
    elif trained is not None and accuracy < trained / 2:
        text = f"is under half of train/acc, {trained:.3f}"
    else:
        return None
    helps = [*_weights(config), *([] if config.augment else ["an augmentation (augment=imagenet for photographs)"])]
    return f"val/acc {accuracy:.3f} {text}; what may help: {', '.join([*helps, 'more trainer.max_epochs'])}"


def _weights(config: Config) -> list[str]:
    """Lines on where pretrained weights are to be had: for few photographs they matter most."""
    model = config.model
    if model is None or model.pretrained:
        return []
    if model.public_weights is not None:
        return ["pretrained weights (model.pretrained=true)"]
    side = config.dataset.arguments.get("image_size")
    if isinstance(side, int) and side >= _PHOTOGRAPHS:
        return ["pretrained weights (experiment=finetune_photos)"]
    return []
