"""CIFAR-100, from the official binary files or from class folders.

Source: A. Krizhevsky, Learning multiple layers of features from tiny images, 2009;
https://www.cs.toronto.edu/~kriz/cifar.html (the file to get is "CIFAR-100 binary version", cifar-100-binary.tar.gz).
"""

from .cifar import CifarForm, CifarImages

_NAMES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel "
    "can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur "
    "dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion "
    "lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree "
    "pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea "
    "seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank "
    "telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
_CLASSES = tuple(_NAMES.split())


class CIFAR100(CifarImages):
    """50,000 training and 10,000 test images of 32 x 32 in a hundred classes, held in memory (154 and 31 MB).

    Of the two labels of an image the class is used, not the group of classes.

    Args:
        split: "train" or "test". Only this split is read.
        root: the folder `cifar-100-binary` or the one that holds it; `cifar-100-binary.tar.gz` or the folder that holds
            it; or a directory, .zip or .tar with `train/CLASS/IMAGE` and `test/CLASS/IMAGE`. `~` is expanded.
        limits: sizes beyond which a file is not read; of a .tar.gz, all that it decompresses to is one.

    Attributes:
        class_names: the hundred names.

    Raises:
        FileNotFoundError, OSError, ValueError: as CIFAR-10.
    """

    RESUMABLE = ("root",)
    form = CifarForm(
        name="CIFAR-100",
        classes=_CLASSES,
        batches={"train": ("train.bin",), "test": ("test.bin",)},
        pickles=frozenset({"meta"}),
        folder="cifar-100-binary",
        archive="cifar-100-binary.tar.gz",
        python="cifar-100-python",
        label_bytes=2,
    )
    classes: int = 100
    class_names: tuple[str, ...] = _CLASSES
    mean: tuple[float, ...] = (0.5071, 0.4865, 0.4409)
    std: tuple[float, ...] = (0.2673, 0.2564, 0.2762)
