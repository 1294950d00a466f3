"""The contract of loggers: what a run calls beyond Lightning's own methods, with defaults that log nothing."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


class LoggerContract:
    """Methods of a logger with their defaults, inherited before one of Lightning's loggers.

        class Mine(LoggerContract, CSVLogger):
            @override
            def log_image(self, name, image, step): ...

    A run calls these methods on loggers that inherit this class and on no others: Lightning's own have methods of the
    same names with other parameters; where both are wanted, the class overrides the method for both, as
    `components.loggers.wandb_logger` does. `leyden` refuses a name that is nearly one of these.
    """

    essential: ClassVar[bool] = False
    """Whether an error of this logger ends the run; otherwise it is a warning, the first of each logger."""

    def cut_after(self, step: int, /) -> None:
        """Remove what was logged of steps after `step`, which training is about to repeat.

        The default removes nothing: services cannot take back what they have.
        """

    def log_image(self, name: str, image: "Image", step: int, /) -> None:
        """Log an image."""

    def log_histogram(self, name: str, counts: Mapping[int, int], step: int, /) -> None:
        """Log a histogram: counts of integers."""

    def log_values(self, name: str, values: "Tensor", step: int, /) -> None:
        """Log a histogram of values."""

    def log_final(self, name: str, parameters: dict[str, Any], varied: list[str], metrics: list[str], /) -> None:
        """Log the result of a run that has ended, for the comparison with others.

        Args:
            name: of the run.
            parameters: hyperparameters and their values.
            varied: hyperparameters that differ between the runs of a sweep.
            metrics: names of the metrics to compare, the most important first.
        """
