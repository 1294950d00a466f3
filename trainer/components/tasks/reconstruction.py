"""task=reconstruction: unsupervised training of features, stage by stage."""

from collections.abc import Mapping
from typing import Any, ClassVar

from lightning.pytorch import LightningModule
from torch import Tensor
from typing_extensions import override

from ...core.protocols import Autoencoder
from ...core.task_contract import TaskContract


class Reconstruction(TaskContract, LightningModule):
    """Greedy training of an autoencoder's stages, each on the output of the stages before it.

    For each stage: min over its weights of  mean over samples of  |x' - x|^2 + weight * sparsity, both summed over
    positions (Le et al. 2012, Coates et al. 2013). Other stages do not change: an optimizer skips parameters
    without a gradient.

    Logged, for train, val and test: cost, reconstruction (the first term), sparsity (the second, without its weight),
    unexplained (the first term over |x|^2, both summed over all samples: 0 for a perfect copy, 1 for a blank).

    Args:
        model: `model(images, stage)` gives (batch, 3): reconstruction error, sparsity term, energy of the input.
        sparsity: weight of the sparsity term, lambda.
        stage: train only this stage; None: all, one after the other.
        epochs_per_stage: None: trainer.max_epochs divided among the stages.

    Raises:
        ValueError: the model has no stages, or none of this number.
    """

    LOGGED: ClassVar[Mapping[str, int]] = {
        f"{split}/{name}": 1
        for split in ("train", "val", "test")
        for name in ("cost", "reconstruction", "sparsity", "unexplained", "stage")
    }
    """Logged metrics, for any number of classes."""

    @override
    @staticmethod
    def try_network(model: Any, images: Tensor, classes: int | None) -> str | None:
        """The error in a network's output for images without values, for the trial build; None if correct."""
        shape = list(model(images, 0).shape)
        wanted = [len(images), 3]
        return None if shape == wanted else f"its forward(images, stage) makes {shape} of a batch, not {wanted}"

    def __init__(
        self, model: Any, sparsity: float = 0.1, stage: int | None = None, epochs_per_stage: int | None = None
    ):
        super().__init__()
        if not hasattr(model, "stages"):
            raise ValueError(f"task=reconstruction needs a model with stages, and {type(model).__name__} has none")
        if stage is not None and not 0 <= stage < len(model.stages):
            raise ValueError(f"task.stage={stage}: the model's stages are 0 to {len(model.stages) - 1}")
        if epochs_per_stage is not None and epochs_per_stage < 1:
            raise ValueError(f"task.epochs_per_stage={epochs_per_stage} must be at least 1")
        self.model: Autoencoder = model
        self.sparsity = sparsity
        self.stage = stage
        self.epochs_per_stage = epochs_per_stage
        self._trained: int | None = None
        """The stage of the newest step, which a test evaluates, although the next epoch may train another."""

    def current_stage(self) -> int:
        """The stage trained in the current epoch; after the last epoch, in the last."""
        if self.stage is not None:
            return self.stage
        stages, epochs = len(self.model.stages), self.trainer.max_epochs or 1
        each = self.epochs_per_stage or max(1, -(-epochs // stages))
        return min(min(self.current_epoch, epochs - 1) // each, stages - 1)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self._trained = self.current_stage()
        return self._cost("train", batch, self._trained)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._evaluate("val", batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._evaluate("test", batch)

    def _evaluate(self, split: str, batch: tuple[Tensor, Tensor]) -> None:
        self._cost(split, batch, self.current_stage() if self._trained is None else self._trained)

    def _cost(self, split: str, batch: tuple[Tensor, Tensor], stage: int) -> Tensor:
        images = batch[0]
        error, sparsity, energy = self.model(images, stage).mean(0).unbind()
        cost = error + self.sparsity * sparsity
        self.log(f"{split}/cost", cost, prog_bar=True, batch_size=len(images))
        for name, value in (("reconstruction", error), ("sparsity", sparsity), ("stage", float(stage))):
            self.log(f"{split}/{name}", value, batch_size=len(images))
        energy = energy.clamp_min(1e-12)
        whole: Any = energy * len(images)  # its weight: the ratio of sums, however samples are divided into batches
        self.log(f"{split}/unexplained", error / energy, prog_bar=True, batch_size=whole)
        return cost
