"""Image shape and classes of a dataset, as its class declares them."""

from .faults import at_fault
from .locate import locate
from .schema import Target
from .targets import build


def known_of_samples(dataset: Target) -> tuple[tuple[int, ...] | None, int | None]:
    """Image shape and number of classes that a dataset class declares; None if unknown before the data is read.

    Raises:
        CannotStart: its arguments are wrong.
    """
    cls = locate(dataset.target)
    # an inherited one does not know the arguments of a derived class of the user's
    if "declared" in vars(cls) or (cls.__module__.startswith("leyden.datasets.") and hasattr(cls, "declared")):
        declared = Target(_target_=f"{dataset.target}.declared", **dataset.arguments)
        with at_fault("dataset", declared):
            return build(declared)
    shape, classes = getattr(cls, "image_shape", None), getattr(cls, "classes", None)
    shape = tuple(shape) if isinstance(shape, tuple | list) else None
    return shape, classes if isinstance(classes, int) else None
