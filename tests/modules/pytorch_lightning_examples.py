"""A LightningModule and a LightningDataModule of the package pytorch_lightning. None knows Leyden, or `lightning`."""

from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

SEEN: list[Any] = []


class Data(pl.LightningDataModule):
    def __init__(self, batch_size: int = 8):
        super().__init__()
        self.save_hyperparameters()
        self.num_classes = 3

    def setup(self, stage: str) -> None:
        generator = torch.Generator().manual_seed(1)
        labels = torch.randint(3, (44,), generator=generator)
        self.points = TensorDataset(torch.randn(44, 4, generator=generator) + labels[:, None], labels)
        if stage == "fit":
            assert self.trainer is not None
            SEEN.append(("world size", self.trainer.world_size))

    def train_dataloader(self) -> Any:
        return DataLoader(self.points, batch_size=self.hparams["batch_size"])

    def val_dataloader(self) -> Any:
        return DataLoader(self.points, batch_size=5)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return 2 * batch[0], batch[1]


class Part(pl.LightningModule):
    """A LightningModule inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(self.trainer.global_step)
        SEEN.append((self.device, self.dtype))
        return self.layer(x)


class Module(pl.LightningModule):
    def __init__(self, lr: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            self.net = Part()
        self.accuracy = MulticlassAccuracy(3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("inner", self.trainer.global_step)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.accuracy.update(self.net(x), y)
        self.log("val_acc", self.accuracy)

    def on_train_epoch_end(self) -> None:
        SEEN.append((self.current_epoch, self.global_step, self.trainer.is_last_batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.trainer.model.parameters(), lr=self.hparams["lr"])  # pyright: ignore
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


class OwnStep(Module):
    def optimizer_step(self, *arguments: Any, **settings: Any) -> None: ...


class LoadersInside(Module):
    def train_dataloader(self) -> Any:
        data = Data()
        data.setup("test")
        return data.train_dataloader()


class DataOfTwoTransfers(Data):
    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return batch
