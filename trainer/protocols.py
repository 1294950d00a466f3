"""What the islands promise each other. Datasets, models and augmentations follow these without importing them."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Dataset(Protocol):
    """Samples by index. Built once for each split: `Target(split="train" | "val" | "test", **arguments)`.

    A class may carry `declared(**arguments)`, a static method: image shape, and number of classes or None, of the
    dataset with these arguments, without reading anything. By it (or by attributes of the class) the network is tried
    before the start.

    A class that carries `mean` and `std` (a float for each channel, of values between 0 and 1) has its uint8 images
    scaled and normalized on the device; float images are left as they are.
    """

    classes: int
    image_shape: Sequence[int]
    """Channels, height, width."""
    splits: Sequence[str]
    """Which of train, val and test the set has of its own."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Image (channels, height, width; uint8 or float) and class: a pure function of the index.

        Raises OSError or ValueError, with the sample's name, for a sample that cannot be read.
        """
        ...


class Augmentation(Protocol):
    """A random change of one training image that draws from `key` alone (63 random bits, never negative)."""

    def __call__(self, image: Tensor, key: int) -> Tensor: ...


class Stateful(Protocol):
    """Whatever is saved in a checkpoint: plain Python values and tensors."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ReceptiveField(Protocol):
    """What an output position sees: on each axis the inputs [i * stride - before, i * stride - before + size)."""

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
    sample); and one that works position by position without parameters (an activation, dropout, or what carries
    `position_wise = True`).

    The model itself then carries `initialize()`: strategy=spatial builds it on the meta device, and has it set there
    whatever is not drawn by position, to what the constructor sets on a real device.
    """

    input_shape: tuple[int, int, int]
    """Channels, height, width of the whole input."""
    output_shape: tuple[int, int, int]
    receptive_field: Any
    """A ReceptiveField. Windows are cut at the borders of the map."""
    positional: Sequence[str]
    """Names of the parameters whose first two dimensions are the rows and columns of output positions. Those that the
    layer holds beside them are shared by all positions."""

    def tile(self, rows: range, cols: range) -> Any:
        """The layer for these output positions only. A layer on the meta device draws the weights of the tile here,
        each position's from a stream of its own."""
        ...

    def at(self, x: Tensor, rows: range, cols: range, **positional: Tensor) -> Tensor:
        """Some of the output positions that the layer (or tile) has, from the inputs under their windows.

        Args:
            rows, cols: positions in the whole map.
            positional: the positional parameters of these positions.
        """
        ...


class Transposed(Protocol):
    """The way back from a Tileable layer's output map to its input map, linear, with the same positional parameters."""

    transposes: tuple[Any]
    """The Tileable layer, in a tuple (it is no child, or its weights would be saved twice); assigned anew when it has
    become a tile."""

    def at(self, y: Tensor, rows: range, cols: range, **positional: Tensor) -> Tensor:
        """What the output positions y, rows x cols, contribute to the inputs under their windows."""
        ...


class Autoencoder(Protocol):
    """What task=reconstruction trains."""

    stages: Any
    """Has a length: the number of stages."""

    def __call__(self, images: Tensor, stage: int | None = None) -> Tensor:
        """(batch, 3) for a stage: reconstruction error, sparsity term, energy of its input, summed over positions."""
        ...
