"""What reads the batches of each split and epoch."""

from typing import Any

from ..config.evaluation_views import EvaluationViews
from ..core import declarations
from .abilities import changes_batches, has_batches, writes_crops
from .batch_reader import BatchSource, SampleBatches, WholeBatches, WholeViewBatches
from .collation import CollateSamples, CollateViews
from .evaluation_views import CollateViewedSamples, EvaluationViewReader
from .process_batches import Kind
from .splits import ImageAugmentation, Reader, Splits, evaluation_sample, plain_sample
from .view_reader import ViewReader


class BatchSources:
    """Sources of batches by split and epoch. A call gives the same pixels in every process and thread.

    Args:
        augment: Augmentation, TwoPartAugmentation or None.
        views: of each image in evaluation; None: one.
        seeded: whether dataset or augmentation may draw from the process's generators.
        mirrors: whether views are mirrored as they are read, and not with their batch on its device.
    """

    def __init__(
        self,
        splits: Splits,
        augment: Any,
        views: EvaluationViews | None = None,
        seeded: bool = False,
        mirrors: bool = False,
    ):
        self._splits = splits
        self._views = views
        self._augment = augment
        self._seeded = seeded
        self._mirrors = mirrors

    def __call__(self, kind: Kind) -> BatchSource:
        split, epoch = kind
        return self._training(epoch) if split == "train" else self._evaluation(split)

    def _training(self, epoch: int) -> BatchSource:
        augment, dataset = self._augment, self._splits.train
        optional = declarations.of_augmentation(augment)
        whole = has_batches(dataset)
        if optional.views is None and optional.augment_batch is None:
            if whole and (augment is None or changes_batches(augment)):
                return WholeBatches(dataset, augment)
            change = None if augment is None else ImageAugmentation(augment)
            return SampleBatches(Reader(dataset, plain_sample, True, change, self._seeded), CollateSamples())
        side = None if optional.size_at is None else optional.size_at(epoch)
        _, height, width = self._splits.whole.image_shape
        size = (height, width) if side is None else (side, side)
        if whole and optional.views is None:
            return WholeViewBatches(dataset, size, epoch)
        read = ViewReader(augment, size, self._mirrors, writes_crops(dataset))
        return SampleBatches(Reader(dataset, read, True, None, self._seeded, read.into), CollateViews(epoch))

    def _evaluation(self, split: str) -> BatchSource:
        dataset: Any = self._splits.val if split == "val" else self._splits.test
        if self._views is not None:
            read = EvaluationViewReader(self._views)
            return SampleBatches(Reader(dataset, read, False, seeded=self._seeded), CollateViewedSamples())
        if has_batches(dataset) and declarations.of_dataset(dataset).evaluation_sample is None:
            return WholeBatches(dataset)
        return SampleBatches(Reader(dataset, evaluation_sample, False, seeded=self._seeded), CollateSamples())
