"""task=simclr: representations without labels, by two views of each image."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from typing_extensions import override

from ...core.network.output_layer import output_parameters
from ...core.sync_batchnorm import Padding
from ...core.task_contract import TaskContract
from .contrastive import gather_rows, normalize_rows, nt_xent


class SimCLR(TaskContract, LightningModule):
    """Contrastive learning of representations (Chen et al. 2020, arXiv 2002.05709).

        h = f(x)                       the network up to its output layer, which is taken off
        z = W2 relu(W1 h)              projection head (section 4.2), for training alone
        loss = mean of NT-Xent         of both views of each sample (eq. 1), `contrastive.nt_xent`

    The negatives of a view are the views of all other samples of the global batch: the z of all workers are gathered in
    every step, and their gradients summed, so that the loss is that of one device with the whole batch. Of N samples,
    width w and e bytes a number each worker receives 2 N (w + 1) e bytes, and as much in an all-reduce of the backward.

    Labels are not used, nothing is evaluated, and there is no forward, as there are no class scores. Logged:
    train/loss; train/acc, the part of the views whose other view is the most similar of all.

    Args:
        model: images to features: its output layer, which has to be fully connected, is replaced by the identity.
        temperature: T.
        width: numbers in z.
        hidden: rows of W1; None: as many as h has.

    Raises:
        ValueError: a temperature of 0 or less, another number under 1, or a network without such an output layer.
    """

    views: ClassVar[int] = 2
    """Views of each sample, in adjacent rows of a batch."""

    LOGGED: ClassVar[Mapping[str, int]] = {"train/loss": 1, "train/acc": 1}
    """Logged metrics, for any number of classes."""

    @override
    @staticmethod
    def try_network(model: nn.Module, images: Tensor, classes: int | None) -> str | None:
        """The error in a network's features for images without values, for the trial build; None if correct."""
        shape = list(model(images).shape)
        if len(shape) == 2 and shape[0] == len(images):
            return None
        return f"without its output layer it makes {shape} of a batch of {len(images)} images, not one vector for each"

    def __init__(self, model: nn.Module, temperature: float = 0.5, width: int = 128, hidden: int | None = None):
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature={temperature} must be greater than 0")
        for name, value in (("width", width), ("hidden", hidden)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        features = _without_output_layer(model)
        self.model = model
        self.projection = nn.Sequential(
            nn.Linear(features, hidden or features, bias=False),
            nn.ReLU(),
            nn.Linear(hidden or features, width, bias=False),
        )
        self.temperature = temperature
        self._padding, self._most = Padding(), 0
        self._group: Any = None
        """The process group of all workers; None: there is one worker."""

    def share_batches(self, padding: Padding, most_samples: int) -> None:
        """Take negatives from the other workers.

        Args:
            padding: whether the current batch only completes collectives.
            most_samples: of a worker in a step.
        """
        self._padding, self._most = padding, most_samples * self.views

    def on_fit_start(self) -> None:
        if self.trainer.world_size > 1:
            # of its own: a strategy may be sending in another thread
            self._group = dist.new_group()

    def training_step(self, batch: tuple[Tensor, Any], batch_idx: int) -> Tensor:
        outputs = self.projection(self.model(batch[0]))
        with torch.autocast(outputs.device.type, enabled=False):
            loss, found = self._loss(normalize_rows(outputs))
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/acc", found, on_step=False, on_epoch=True)
        return loss

    def _loss(self, own: Tensor) -> tuple[Tensor, Tensor]:
        if self._group is None:
            everything = torch.ones(len(own), dtype=torch.bool, device=own.device)
            return nt_xent(own, own, everything, 0, self.temperature)
        rows, valid = gather_rows(own, not self._padding.now, self._most, self._group)
        return nt_xent(own, rows, valid, dist.get_rank(self._group) * self._most, self.temperature)


def _without_output_layer(model: nn.Module) -> int:
    """Replace a network's output layer by the identity. Returns the number of features that it got."""
    name = next(iter(output_parameters(model)), "").rpartition(".")[0]
    layer = model.get_submodule(name) if name else None
    if not isinstance(layer, nn.Linear):
        made = "there is none that could be replaced" if layer is None else f"that of {type(model).__name__} is {layer}"
        raise ValueError(f"task=simclr needs a network whose output layer is fully connected: {made}")
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, nn.Identity())
    return layer.in_features
