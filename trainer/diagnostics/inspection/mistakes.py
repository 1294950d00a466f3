"""Mistakes of a classifier, the surest first."""

from typing import NamedTuple

from torch import Tensor


class Mistake(NamedTuple):
    """An image that gets another class than its label: its number, label and class, and the probability of each."""

    image: int
    label: int
    found: int
    of_label: float
    of_found: float


def worst_mistakes(probabilities: Tensor, labels: Tensor, count: int) -> list[Mistake]:
    """Mistakes with the largest cross entropy, that is the smallest probability of the label.

    Args:
        probabilities: (images, classes).
        labels: (images,), numbers of classes.
    """
    found = probabilities.argmax(1)
    of_label = probabilities.gather(1, labels[:, None])[:, 0]
    wrong = (found != labels).nonzero().flatten()
    order = wrong[of_label[wrong].argsort(stable=True)][:count]
    return [
        Mistake(i, int(labels[i]), int(found[i]), float(of_label[i]), float(probabilities[i].max()))
        for i in order.tolist()
    ]
