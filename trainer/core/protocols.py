"""Protocols of datasets, models and augmentations, which implement them without importing them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor
from torch.nn import Module

Label = int | Tensor
"""Class, or float32 (classes,): 1 for each of an image's classes."""


@runtime_checkable
class Dataset(Protocol):
    """Samples by index. Built once for each split: `Target(split="train" | "val" | "test", **arguments)`.

    A class may carry `declared(**arguments)`, a static method: image shape, and number of classes or None, of the
    dataset with these arguments, without reading anything. The trial build before the start uses it (or attributes of
    the class).

    A class that carries `mean` and `std` (a float for each channel, of values between 0 and 1) has its uint8 images
    scaled and normalized on the device; float images are left as they are.

    A class with `thread_safe = True` may be read by several threads at once, and is, with `dataset.threads=auto`. It
    draws nothing from the generators of `random`, NumPy and torch, which threads share. Before each sample of any other
    class they are seeded by (seed, epoch, sample), in evaluation by (seed, sample).

    A dataset in memory may have `batch(indices)` (int64): images and labels of several samples, in new memory and equal
    to those of `dataset[index]`, so nothing is drawn; it is read in this way by the loop itself. In a subclass that
    overrides a method that reads, neither counts unless it has it, too.

    A dataset whose images have any number of classes has the attribute `multi_label = True`, and targets (classes,).

    One with `labels`, the class of each sample, can be divided and sampled by classes (`dataset.partitioning`,
    `dataset.sampling`); one with `file_ends`, the samples up to the end of each of its files, by files. One with
    `read_ahead(first, end)`, which asks the system for the bytes of consecutive samples that soon are read, can be
    shuffled by blocks (`dataset.shuffling`).

    The first lines of a run say the number of samples of each class if it has `labels`, under the names in
    `class_names`; the `folder` in which they were found; and `left_out`, the number of files that are not read, by
    reason.

    One with `fingerprint()`, text that differs where the content does (names and sizes of files, say, but no times), is
    recognized by it when a run is resumed: where only the second line differs, the samples are the same, in other
    bytes. Any other is recognized by its length, its classes and their names.

    One with `name_hashes` (uint64, [N]), numbers that follow from the names of its samples, and with `labels` holds out
    `dataset.val_fraction` of each class by them, so that an added sample moves no other.

    A dataset that can decode parts of its images is a `CroppingDataset`. One with a method `evaluation_sample(index)`
    evaluates on what that gives, in place of `dataset[index]`. One with `evaluation_views(index, crops, scales)` can be
    evaluated on several views of an image (views, channels, height, width): for each of `scales`, pixels of the shorter
    side (none: its own), the centre, with `crops` of 5 the corners too, with 10 all mirrored.
    """

    classes: int
    image_shape: Sequence[int]
    """Channels, height, width."""
    splits: Sequence[str]
    """The splits (train, val, test) that the dataset provides."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Tensor, Label]:
        """Image (channels, height, width; uint8 or float) and label: a function of the index, and of what is drawn.

        Raises OSError or ValueError, with the sample's name, for a sample that cannot be read.
        """
        ...


Box = tuple[int, int, int, int]
"""Left, top, width, height of a part of an image, in pixels."""


@runtime_checkable
class CroppingDataset(Protocol):
    """A dataset that decodes an image once for several crops of it."""

    def crops(
        self, index: int, boxes: Callable[[int, int], Sequence[Box]], size: tuple[int, int]
    ) -> tuple[Tensor, Label]:
        """Crops (crops, channels, *size), uint8, and label.

        Args:
            boxes: the crops' boxes, by height and width of the whole image.
            size: height and width to which each crop is resized.
        """
        ...


class Augmentation(Protocol):
    """A random change of one training image, drawn from `key` alone (63 random bits, never negative).

    A class with `thread_safe = True` may be called by several threads at once; for any other the generators of
    `random`, NumPy and torch are seeded as for a `Dataset`. One with `augment_images(images, keys)`
    changes a batch (samples, channels, height, width), which it may overwrite, to what it makes of each image.

    An augmentation in two parts is a `TwoPartAugmentation` instead.
    """

    def __call__(self, image: Tensor, key: int) -> Tensor: ...


class BatchDraws(NamedTuple):
    """What the random changes of a batch may depend on: one row for each of its images."""

    keys: Tensor
    """int64, 63 random bits by (seed, epoch, sample, view), on the device of the images."""
    sample_keys: Tensor
    """int64, 63 random bits by (seed, sample): the same in every epoch."""
    epoch: int
    views: int
    """Views of each sample, which are adjacent rows."""
    classes: int
    mean: Tensor
    """The dataset's mean of each channel, of values from 0 to 1: (1, channels, 1, 1)."""


class TwoPartAugmentation(Protocol):
    """Random changes of training images: crops that are chosen before decoding, the rest on batches, on the device.

    A class has one of the two methods or both. It may have `size_at(epoch)`: pixels a side of that epoch's images, or
    None for the dataset's.
    """

    def views(self, size: tuple[int, int], key: int) -> Sequence[tuple[Box, bool]]:
        """Box and mirroring of each view of an image; each box is resized to the network's input.

        Args:
            size: height and width of the image.
            key: 63 random bits by (seed, epoch, sample).
        """
        ...

    def augment_batch(self, images: Tensor, labels: Tensor, draws: BatchDraws) -> tuple[Tensor, Tensor]:
        """Changed images and labels; the host must not wait for the device.

        Args:
            images: float32, (batch, channels, height, width), from 0 to 1 and not yet normalized if the dataset's are
                uint8.
            labels: int64 (batch,), or float (batch, classes): the weight of each class, or 1 for each of an image's.
        """
        ...


@runtime_checkable
class ComputesWeights(Protocol):
    """A model that takes weights from the training images when a run begins."""

    def weights_from_images(self, images: Tensor) -> dict[str, Tensor]:
        """Tensors by name, computed of normalized images that are not augmented."""
        ...


@runtime_checkable
class HasPublicNames(Protocol):
    """A model with public weights of other names."""

    def public_names(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """The names of the model's tensors in a file, by its layout."""
        ...


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


@runtime_checkable
class Student(Protocol):
    """A task that learns from a teacher, a trained network that is none of its modules."""

    teacher: str | Mapping[str, str]
    """A run or file; pinned: `source`, `path` and `sha256`."""

    def set_teacher(self, network: Module) -> None:
        """Learn from this network, which is on the device of the training."""
        ...


@runtime_checkable
class Contrastive(Protocol):
    """A task whose loss compares views of all samples of the global batch."""

    views: int
    """Views of each sample, which are adjacent rows of a batch."""

    def share_batches(self, padding: Any, most_samples: int) -> None:
        """Take negatives from the other workers, too.

        Args:
            padding: `now`: whether the current batch is a repeated sample that only completes collectives.
            most_samples: of a worker in a step.
        """
        ...


class Autoencoder(Protocol):
    """The model of task=reconstruction."""

    stages: Any
    """The stages; their number is its length."""

    def __call__(self, images: Tensor, stage: int | None = None) -> Tensor:
        """(batch, 3) for a stage: reconstruction error, sparsity term, energy of its input, summed over positions.

        Without a stage the features of the last one; each stage is called as a module on the features before it.
        With `reconstruction(images)`, what the first stage keeps of images, `leyden inspect` draws the stages.
        """
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
class RankingCallback(Protocol):
    """A callback that ranks checkpoints, as `callbacks.checkpoint` does."""

    best: list[tuple[float, int]]
    """Value and step of each, the best first."""


@runtime_checkable
class EarlyStoppingCallback(Protocol):
    """A callback that ends training early: the attributes of Lightning's EarlyStopping that modules read."""

    monitor: str
    patience: int

    @property
    def wait_count(self) -> int: ...

    @property
    def best_score(self) -> Tensor: ...
