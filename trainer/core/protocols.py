"""Protocols of datasets, models and augmentations, which implement them without importing them."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Dataset(Protocol):
    """Samples by index. Built once for each split: `Target(split="train" | "val" | "test", **arguments)`.

    A class may carry `declared(**arguments)`, a static method: image shape, and number of classes or None, of the
    dataset with these arguments, without reading anything. The trial build before the start uses it (or attributes of
    the class).

    A class that carries `mean` and `std` (a float for each channel, of values between 0 and 1) has its uint8 images
    scaled and normalized on the device; float images are left as they are.
    """

    classes: int
    image_shape: Sequence[int]
    """Channels, height, width."""
    splits: Sequence[str]
    """The splits (train, val, test) that the dataset provides."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Image (channels, height, width; uint8 or float) and class: a pure function of the index.

        Raises OSError or ValueError, with the sample's name, for a sample that cannot be read.
        """
        ...


class Augmentation(Protocol):
    """A random change of one training image, drawn from `key` alone (63 random bits, never negative)."""

    def __call__(self, image: Tensor, key: int) -> Tensor: ...


class ReceptiveField(Protocol):
    """Window of an output position: on each axis the inputs [i * stride - before, i * stride - before + size)."""

    @property
    def size(self) -> int: ...

    @property
    def stride(self) -> int: ...

    @property
    def before(self) -> int: ...


class Tileable(Protocol):
    """A layer from map to map (batch, channels, height, width) that can compute any rectangle of its positions alone.

    Layers that `strategy=spatial` finds in the part of a model to be divided are of four kinds: this one; one that is
    `Transposed`; one that `sums_positions` (an attribute that is True: its output is a sum over all positions, for each
    sample); and one that works position by position without parameters (an activation, dropout, or a layer with
    `position_wise = True`).

    The model itself has `initialize()`: strategy=spatial builds it on the meta device, and calls this to initialize
    all parameters that are not drawn by position as the constructor would on a real device.
    """

    input_shape: tuple[int, int, int]
    """Channels, height, width of the whole input."""
    output_shape: tuple[int, int, int]
    receptive_field: Any
    """A ReceptiveField. Windows are cut at the borders of the map."""
    positional: Sequence[str]
    """Names of the parameters whose first two dimensions are the rows and columns of output positions. Its
    other parameters are shared by all positions."""

    def tile(self, rows: range, cols: range) -> Any:
        """The layer for these output positions only. A layer on the meta device draws the weights of the tile here,
        each position's from its own seed."""
        ...

    def at(self, x: Tensor, rows: range, cols: range, **positional: Tensor) -> Tensor:
        """Outputs at some positions of the layer (or tile), from the inputs under their windows.

        Args:
            rows, cols: positions in the whole map.
            positional: the positional parameters of these positions.
        """
        ...


class Transposed(Protocol):
    """Linear map from a Tileable layer's output map back to its input map, with the same positional parameters."""

    transposes: tuple[Any]
    """The Tileable layer, in a tuple so that it is not a child and its weights are saved once; reassigned when the
    layer is tiled."""

    def at(self, y: Tensor, rows: range, cols: range, **positional: Tensor) -> Tensor:
        """Contributions of the outputs y at rows x cols to the inputs under their windows."""
        ...


class Autoencoder(Protocol):
    """The model of task=reconstruction."""

    stages: Any
    """The stages; their number is its length."""

    def __call__(self, images: Tensor, stage: int | None = None) -> Tensor:
        """(batch, 3) for a stage: reconstruction error, sparsity term, energy of its input, summed over positions."""
        ...


@runtime_checkable
class CheckpointCallback(Protocol):
    """A callback that ranks checkpoints: the attributes of Lightning's ModelCheckpoint that modules read."""

    @property
    def dirpath(self) -> str | None: ...

    @property
    def best_model_path(self) -> str: ...

    @property
    def best_model_score(self) -> Tensor | None: ...

    @property
    def last_model_path(self) -> str: ...


@runtime_checkable
class EarlyStoppingCallback(Protocol):
    """A callback that ends training early: the attributes of Lightning's EarlyStopping that modules read."""

    monitor: str
    patience: int

    @property
    def wait_count(self) -> int: ...

    @property
    def best_score(self) -> Tensor: ...
