"""Predictions of a run's network for files of images."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..base.open_files import is_lack
from ..base.printable import printable
from ..config.faults import build_checked
from ..config.schema import Config, Target
from ..core.batch import BadSamples
from ..core.threads import cores
from ..data.splits import evaluation_sample
from ..engine.inference.predictor import Predictor, preparation_of


@dataclass(frozen=True)
class Ranked:
    """A class that a network gives an image."""

    number: int
    name: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image.

    Attributes:
        file: its path below the folder or archive; the index of an image from memory.
        ranked: the most probable first.
    """

    file: str
    ranked: tuple[Ranked, ...]

    @property
    def name(self) -> str:
        """Name of the most probable class."""
        return self.ranked[0].name

    @property
    def probability(self) -> float:
        """Probability of the most probable class."""
        return self.ranked[0].probability


def open_photographs(predictor: Predictor, config: Config, target: str, root: str) -> Any:
    """The photographs below a path as a dataset that prepares them as the run's evaluation does.

    Raises:
        CannotStart: there are none, or the run's dataset does not prepare files.
    """
    node = Target.model_validate({"_target_": target, "root": root, **preparation_of(config)})
    return build_checked("PHOTOS", node, image_shape=predictor.train_shape)


def predict_files(
    predictor: Predictor,
    source: Any,
    top: int,
    batch_size: int,
    max_bad: int,
    skipped: Callable[[str], None],
    seen: Callable[[Tensor], None] = lambda images: None,
) -> Iterator[Prediction]:
    """Predictions of all photographs, in their order, decoded by a thread for each core.

    Args:
        max_bad: unreadable photographs that are left out.
        skipped: gets the reason of each.
        seen: gets the prepared images of each batch, uint8 (batch, channels, height, width).

    Raises:
        BadSamples: more are unreadable.
        ValueError: the task computes no class scores.
    """
    import torch

    bad = 0
    with ThreadPoolExecutor(cores()) as pool:
        starts = range(0, len(source), batch_size)
        batches = [range(start, min(start + batch_size, len(source))) for start in starts]
        waiting = [pool.submit(_read, source, index) for index in batches[0]] if batches else []
        for number, indices in enumerate(batches):
            read = [future.result() for future in waiting]
            following = batches[number + 1] if number + 1 < len(batches) else ()
            waiting = [pool.submit(_read, source, index) for index in following]
            for problem in (found for found in read if isinstance(found, str)):
                bad += 1
                if bad > max_bad:
                    pool.shutdown(cancel_futures=True)
                    raise BadSamples(problem)
                skipped(problem)
            kept = [(index, image) for index, image in zip(indices, read, strict=True) if not isinstance(image, str)]
            if not kept:
                continue
            images = torch.stack([image for _, image in kept])
            seen(images)
            yield from rank_classes(
                predictor.probabilities(images),
                [source.name(index) for index, _ in kept],
                predictor.class_names,
                top,
            )


def rank_classes(probabilities: Tensor, files: Sequence[str], names: Sequence[str], top: int) -> Iterator[Prediction]:
    """The most probable classes of each row of (batch, classes)."""
    best = probabilities.topk(min(top, probabilities.shape[1]), dim=1)
    for file, values, numbers in zip(files, best.values.tolist(), best.indices.tolist(), strict=True):
        rows = zip(numbers, values, strict=True)
        yield Prediction(file, tuple(Ranked(n, str(names[n]) if n < len(names) else str(n), v) for n, v in rows))


def _read(source: Any, index: int) -> Tensor | str:
    """A prepared image, or why it cannot be read."""
    try:
        return evaluation_sample(source, index, 0)[0]
    except (OSError, ValueError) as error:
        if is_lack(error):
            raise
        return printable(str(error))
