"""CIFAR-10, from the official binary files or from class folders.

Source: A. Krizhevsky, Learning multiple layers of features from tiny images, 2009;
https://www.cs.toronto.edu/~kriz/cifar.html (the file to get is "CIFAR-10 binary version", cifar-10-binary.tar.gz).
"""

from .cifar import CifarForm, CifarImages

_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class CIFAR10(CifarImages):
    """50,000 training and 10,000 test images of 32 x 32 in ten classes, held in memory (154 and 31 MB).

    Args:
        split: "train" or "test". Only this split is read.
        root: the folder `cifar-10-batches-bin` or the one that holds it; `cifar-10-binary.tar.gz` or the folder that
            holds it; or a directory, .zip or .tar with `train/CLASS/IMAGE` and `test/CLASS/IMAGE`. `~` is expanded.
            Archives are read in place.
        limits: sizes beyond which a file is not read; of a .tar.gz, all that it decompresses to is one.

    Attributes:
        class_names: the ten names.

    Raises:
        FileNotFoundError: nothing at `root`, or other files than expected; the message lists the expected ones.
        OSError, ValueError: no such split; pickled batches; a file that is cut off, damaged or of another size. No
            sample can be skipped: all are decoded at the start.
    """

    RESUMABLE = ("root",)
    form = CifarForm(
        name="CIFAR-10",
        classes=_CLASSES,
        batches={"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
        pickles=frozenset({"batches.meta", "test_batch", *(f"data_batch_{i}" for i in range(1, 6))}),
        folder="cifar-10-batches-bin",
        archive="cifar-10-binary.tar.gz",
        python="cifar-10-batches-py",
        label_bytes=1,
    )
    classes: int = 10
    class_names: tuple[str, ...] = _CLASSES
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    std: tuple[float, ...] = (0.2470, 0.2435, 0.2616)
