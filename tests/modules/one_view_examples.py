"""An augmentation of a user's with one view."""

from typing import Any


class OneView:
    """An augmentation of somebody's, with one view of an image."""

    def __init__(self, **unused: Any):
        pass

    def views(self, size: tuple[int, int], key: int) -> list[Any]:
        return [((0, 0, size[1], size[0]), False)]
