"""What datasets and augmentations declare about how they may be read."""

from typing import Any

from ..core import declarations

_READS = ("__getitem__", "crops", "crops_into", "evaluation_sample")
_CHANGES = ("__call__", "views")


def thread_safe(dataset: Any, augment: Any = None) -> bool:
    """Whether several threads may read samples at once: both declare `thread_safe`."""
    return _declares(dataset, _READS) and (augment is None or _declares(augment, _CHANGES))


def has_batches(dataset: Any) -> bool:
    """Whether `dataset.batch(indices)` gives what `dataset[index]` does."""
    return _stands_for(dataset, "batch", ("__getitem__",))


def changes_batches(augment: Any) -> bool:
    """Whether `augment.augment_images(images, keys)` gives what `augment(image, key)` does."""
    return _stands_for(augment, "augment_images", ("__call__",))


def writes_crops(dataset: Any) -> bool:
    """Whether `dataset.crops_into(index, boxes, room)` gives what `dataset.crops` does."""
    return _stands_for(dataset, "crops_into", ("crops",))


def looks_at_files(dataset: Any) -> bool:
    """Whether `dataset.look_at(index)` raises what `dataset[index]` does, for a file that is no image."""
    return _stands_for(dataset, "look_at", _READS)


def class_name(dataset: Any) -> str:
    """The name of a dataset's class; of a subset that of its dataset."""
    while declarations.of_dataset(dataset).renumbers:
        dataset = dataset.dataset
    return type(dataset).__name__


def _declares(part: Any, methods: tuple[str, ...]) -> bool:
    if declarations.of_dataset(part).renumbers:
        return _declares(part.dataset, methods)
    return bool(declarations.of_dataset(part).thread_safe) and _stands_for(part, "thread_safe", methods)


def _stands_for(part: Any, name: str, methods: tuple[str, ...]) -> bool:
    """Whether the class has `name`, and no subclass of the one that defines it has overridden one of the methods.

    What a class says of its own methods does not hold for those of a subclass.
    """
    if declarations.of_dataset(part).renumbers:
        return _stands_for(part.dataset, name, methods)
    if not hasattr(part, name):
        return False
    order = type(part).__mro__
    own = vars(part)

    def place(attribute: str) -> int:
        if attribute in own:
            return -1
        return next((number for number, cls in enumerate(order) if attribute in vars(cls)), len(order))

    return place(name) <= min(place(method) for method in methods)
