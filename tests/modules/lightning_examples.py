"""LightningModules and LightningDataModules as people write them for Lightning's Trainer. None knows Leyden."""

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

SEEN: list[Any] = []
"""What the modules below saw, in order; tests empty it."""


def points(samples: int, seed: int) -> TensorDataset:
    """Three classes of points in four dimensions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (samples,), generator=generator)
    return TensorDataset(torch.randn(samples, 4, generator=generator) + labels[:, None].float(), labels)


class Noisy(Dataset[Any]):
    """Each reading differs, by the global random numbers that usual transforms draw from."""

    def __init__(self, inner: Any):
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        x, y = self.inner[index]
        return x + 0.1 * torch.randn(4) + 0.1 * random.random() + float(0.1 * np.random.rand()), y


class Stream(IterableDataset[Any]):
    """Without a length."""

    def __init__(self, inner: TensorDataset):
        self.inner = inner

    def __iter__(self) -> Any:
        return iter([self.inner[index] for index in range(len(self.inner))])


class Points(LightningDataModule):
    def __init__(
        self,
        batch_size: int = 8,
        shuffle: bool = False,
        noisy: bool = False,
        stream: bool = False,
        num_workers: int = 0,
        own_generator: bool = False,
        samples: int = 48,
        val_samples: int = 23,
    ):
        super().__init__()
        self.save_hyperparameters()
        self.num_classes = 3

    def prepare_data(self) -> None:
        SEEN.append("prepare_data")

    def setup(self, stage: str) -> None:
        SEEN.append(f"data.setup({stage})")
        if stage == "fit":
            train = points(self.hparams["samples"], 1)
            self.train_set = Noisy(train) if self.hparams["noisy"] else train
            self.val_set = points(self.hparams["val_samples"], 2)
            assert self.trainer is not None
            SEEN.append(("world_size", self.trainer.world_size))
        if stage == "test":
            self.test_set = points(17, 3)

    def train_dataloader(self) -> Any:
        settings = self.hparams
        if settings["stream"]:
            return DataLoader(Stream(self.train_set), batch_size=settings["batch_size"])  # pyright: ignore
        return DataLoader(
            self.train_set,
            batch_size=settings["batch_size"],
            shuffle=settings["shuffle"],
            num_workers=settings["num_workers"],
            generator=torch.Generator().manual_seed(5) if settings["own_generator"] else None,
        )

    def val_dataloader(self) -> Any:
        return DataLoader(self.val_set, batch_size=5)

    def test_dataloader(self) -> Any:
        return DataLoader(self.test_set, batch_size=5)

    def teardown(self, stage: str) -> None:
        SEEN.append(f"data.teardown({stage})")


class PointsOfProcesses(Points):
    """Reads by processes that live as long as the loaders."""

    def train_dataloader(self) -> Any:
        return DataLoader(Noisy(self.train_set), batch_size=8, shuffle=True, num_workers=1, persistent_workers=True)

    def val_dataloader(self) -> Any:
        return DataLoader(Noisy(self.val_set), batch_size=5, num_workers=1, persistent_workers=True)


class PointsPinned(Points):
    def train_dataloader(self) -> Any:
        return DataLoader(self.train_set, batch_size=8, pin_memory=True)


class PointsWithTransfer(Points):
    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return batch


class PointsInAList(Points):
    def train_dataloader(self) -> Any:
        return [points(8, number).tensors for number in range(3)]


class PointsOfTwoLoaders(Points):
    def val_dataloader(self) -> Any:
        return [DataLoader(self.val_set), DataLoader(self.val_set)]


class PointsWithoutValidation(Points):
    def val_dataloader(self) -> Any:
        return []


class PointsWithState(Points):
    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.counted = 0

    def state_dict(self) -> dict[str, Any]:
        self.counted += 1
        return {"counted": self.counted}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        SEEN.append(("data state", state_dict["counted"]))


class PointsTwiceAsLarge(Points):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return 2 * batch[0], batch[1]


class Classic(LightningModule):
    """A net of its own, all three steps, OneCycleLR by the step."""

    def __init__(self, lr: float = 0.1, frequency: int = 2):
        super().__init__()
        self.save_hyperparameters()
        with torch.random.fork_rng():
            torch.manual_seed(7)
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])
        total = int(self.trainer.estimated_stepping_batches)
        SEEN.append(("total", total))
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=self.hparams["lr"], total_steps=total)
        schedule = {"scheduler": scheduler, "interval": "step", "frequency": self.hparams["frequency"]}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        SEEN.append(("lr", optimizer.param_groups[0]["lr"]))


class Plain(Classic):
    """SGD and nothing else."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"], momentum=0.9)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        pass


class DropsOut(Plain):
    """Draws from the run's own random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(F.dropout(x, 0.3, self.training))


class DrawsLate(Plain):
    """Draws for the first time in its eighth step, from each generator of the process."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss if self.global_step < 7 else loss * (torch.rand(()) + random.random() + float(np.random.rand()))


class Plateau(Classic):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=10.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "train_loss"}}


class PlateauOfNothing(Plateau):
    strict = True

    def configure_optimizers(self) -> Any:
        returned = super().configure_optimizers()
        returned["lr_scheduler"] |= {"monitor": "never_logged", "strict": self.strict}
        return returned


class PlateauOfPerhaps(PlateauOfNothing):
    strict = False


class TupleOfLists(Classic):
    """By the epoch; the monitor means nothing to StepLR."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
        return [optimizer], [{"scheduler": scheduler, "monitor": "val_loss"}]


class Measured(LightningModule):
    """torchmetrics objects as attributes, around a model that the config gives."""

    def __init__(self, model: nn.Module | None = None, classes: int = 3):
        super().__init__()
        self.model = nn.Linear(4, classes) if model is None else model
        self.train_acc = MulticlassAccuracy(classes, average="micro")
        self.train_auroc = MulticlassAUROC(classes)  # without thresholds: it keeps lists
        self.val_acc = MulticlassAccuracy(classes, average="micro")
        both = {"acc": MulticlassAccuracy(classes, average="macro"), "f1": MulticlassF1Score(classes)}
        self.collection = MetricCollection(both, prefix="val_")
        self.mean_loss = MeanMetric()

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        scores = self(x)
        self.train_acc(scores, y)
        self.log("train_acc", self.train_acc, on_step=True, on_epoch=True)
        self.train_auroc.update(scores.detach(), y)
        self.log("train_auroc", self.train_auroc, on_step=False, on_epoch=True)
        return F.cross_entropy(scores, y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        scores = self(x)
        self.val_acc.update(scores, y)
        self.collection.update(scores, y)
        self.mean_loss.update(F.cross_entropy(scores, y), weight=len(y))
        self.log("val_micro", self.val_acc)
        self.log_dict(self.collection)
        self.log("val_mean_loss", self.mean_loss)
        self.log("val_loss", F.cross_entropy(scores, y))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Hooked(Plain):
    """Notes every hook, with what it was given."""

    def setup(self, stage: str) -> None:
        SEEN.append("setup")

    def teardown(self, stage: str) -> None:
        SEEN.append("teardown")

    def on_fit_start(self) -> None:
        SEEN.append("on_fit_start")

    def on_fit_end(self) -> None:
        SEEN.append("on_fit_end")

    def on_train_start(self) -> None:
        SEEN.append("on_train_start")

    def on_train_end(self) -> None:
        SEEN.append("on_train_end")

    def on_train_epoch_start(self) -> None:
        SEEN.append(("on_train_epoch_start", self.current_epoch, self.global_step))

    def on_train_epoch_end(self) -> None:
        SEEN.append(("on_train_epoch_end", self.current_epoch, self.global_step, self.trainer.training))
        SEEN.append(("val known", "val_loss" in self.trainer.callback_metrics))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        SEEN.append(("on_train_batch_start", len(batch[0]), batch_idx, self.global_step))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs["loss"]
        SEEN.append(("on_train_batch_end", round(float(loss), 5), loss.requires_grad, outputs["more"], batch_idx))
        SEEN.append(("after the step", self.global_step, round(float(next(self.parameters()).detach().sum()), 5)))

    def on_before_backward(self, loss: Tensor) -> None:
        SEEN.append(("on_before_backward", round(float(loss.detach()), 5)))

    def on_after_backward(self) -> None:
        SEEN.append(("on_after_backward", round(float(next(self.parameters()).grad.abs().sum()), 5)))  # pyright: ignore

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        SEEN.append(("on_before_optimizer_step", len(optimizer.param_groups), self.global_step))

    def on_validation_start(self) -> None:
        SEEN.append(("on_validation_start", self.trainer.validating, self.trainer.training))

    def on_validation_end(self) -> None:
        SEEN.append("on_validation_end")

    def on_validation_epoch_start(self) -> None:
        SEEN.append(("on_validation_epoch_start", self.training, torch.is_grad_enabled()))

    def on_validation_epoch_end(self) -> None:
        SEEN.append("on_validation_epoch_end")
        self.log("val_from_hook", 0.25 + self.current_epoch)

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        SEEN.append(("on_validation_batch_start", batch_idx))

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:  # pyright: ignore
        SEEN.append(("on_validation_batch_end", outputs, batch_idx))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        SEEN.append(("training_step", batch_idx, self.training))
        return {"loss": super().training_step(batch, batch_idx), "more": "kept"}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        super().validation_step(batch, batch_idx)
        return "output"


class ZeroGradHook(Plain):
    def on_before_zero_grad(self, optimizer: Any) -> None:
        SEEN.append("on_before_zero_grad")


class Chatty(Plain):
    """Everything that `self.log` takes."""

    def __init__(self) -> None:
        super().__init__(lr=0.1)
        self.scale = nn.Parameter(torch.ones(()))
        self.seen_epochs = 0

    def on_train_epoch_start(self) -> None:
        self.log("from_epoch_start", 3)

    def training_step(self, batch: Any) -> Tensor:  # pyright: ignore  # people leave out batch_idx
        _, y = batch
        loss = self.loss(batch) * self.scale
        self.log("loss", loss)
        loss += 1.0 - 1.0
        self.log_dict({"size": len(y), "again": float(len(y))}, on_step=False, on_epoch=True)
        self.log("samples", float(len(y)), on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("largest", y.max().float(), on_step=False, on_epoch=True, reduce_fx=torch.max)
        self.log("smallest", float(len(y)), on_step=False, on_epoch=True, reduce_fx="min")
        self.log("unweighted", float(len(y)), on_step=False, on_epoch=True, batch_size=1)
        number: Any = np.float32(0.5)
        self.log("numpy", number, on_step=True, on_epoch=True, sync_dist=True, rank_zero_only=False)
        self.log("hidden", 1.0, logger=False)
        self.log("scale", self.scale)
        self.print("printed once a step")
        SEEN.append(("device", self.device, "dtype", self.dtype, "schedulers", self.lr_schedulers()))
        SEEN.append(("scale", float(self.scale.detach())))
        return loss

    def validation_step(self, batch: Any) -> None:  # pyright: ignore
        self.log("val_size", float(len(batch[1])))

    def on_train_epoch_end(self) -> None:
        self.seen_epochs += 1
        self.log("from_epoch_end", float(self.seen_epochs))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["seen_epochs"] = self.seen_epochs

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seen_epochs = checkpoint["seen_epochs"]
        SEEN.append(("loaded", self.seen_epochs))


class KeepsAForeigner(Plain):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = Noisy(points(1, 1))


class Frozen(Plain):
    """Fine-tuning: batch normalization stays as it is while the rest learns."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.norm.eval()

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(("norm trains", self.norm.training, "net trains", self.net.training))
        return self.net(self.norm(x))


class NormedPictures(Plain):
    """A network of its own for pictures of 3 x 8 x 8, with a BatchNorm of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 10), nn.BatchNorm1d(10))


class Normalized(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


class Inner(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.log("inner", 2.0, on_step=False, on_epoch=True)
        return self.layer(x)


class Outer(Plain):
    """A LightningModule inside another, and work on the batch once it is on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Inner()  # pyright: ignore

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        SEEN.append(("transferred", self.trainer.training, len(batch[0])))
        return batch


class Manual(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class OwnClipping(Plain):
    def configure_gradient_clipping(self, *arguments: Any, **options: Any) -> None: ...


class OwnStep(Plain):
    def optimizer_step(self, *arguments: Any, **options: Any) -> None: ...


class OwnBackward(Plain):
    def backward(self, loss: Tensor, *arguments: Any, **options: Any) -> None: ...


class OwnTransfer(Plain):
    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any: ...


class OwnModes(Plain):
    def on_validation_model_train(self) -> None: ...


class TwoOptimizers(Plain):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.Adam(self.parameters())]


class NoOptimizer(Plain):
    def configure_optimizers(self) -> Any:
        return None


class NeedsClosure(Plain):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


class NoTrainingStep(LightningModule): ...


class PlateauWithoutMonitor(Plain):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)]


class ReturnsNothing(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"accuracy": 1.0}


class Skips(Classic):
    """Skips batches, the epoch's first among them; a schedule by the step goes on."""

    def __init__(self, every: int = 3, momentum: float = 0.9):
        super().__init__(frequency=1)
        self.every = every
        self.momentum = momentum

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx % self.every == 0 else loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=self.momentum)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.7)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        SEEN.append((self.global_step, sorted(outputs), self.optimizers().param_groups[0]["lr"]))  # pyright: ignore

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        SEEN.append("step")

    def on_before_zero_grad(self, optimizer: Any) -> None:
        SEEN.append("zero")

    def on_before_backward(self, loss: Tensor) -> None:
        SEEN.append("backward")


class EndsEpochs(Plain):
    def training_epoch_end(self, outputs: Any) -> None: ...

    def validation_epoch_end(self, outputs: Any) -> None: ...


class EndsTests(Plain):
    def test_epoch_end(self, outputs: Any) -> None: ...


class SkipsEpoch(Plain):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1


class LogsVector(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("vector", torch.ones(3))
        return super().training_step(batch, batch_idx)


class OwnLoaders(Plain):
    def train_dataloader(self) -> Any:
        raise AssertionError("the dataset's loaders are used")


class LoadersInside(Plain):
    """Brings its data, in the order in which Lightning asks for it."""

    def __init__(self, samples: int = 48) -> None:
        super().__init__()
        self.samples = samples

    def prepare_data(self) -> None:
        SEEN.append("prepare")

    def setup(self, stage: str) -> None:
        if stage == "fit":
            SEEN.append("setup(fit)")
            trainer: Any = self.trainer
            SEEN.append((trainer.datamodule, self.trainer.world_size, self.trainer.max_epochs))
            self.sets = points(self.samples, 1), points(23, 2)
        if stage == "test":
            self.test_set = points(17, 3)

    def train_dataloader(self) -> Any:
        return DataLoader(self.sets[0], batch_size=8)

    def val_dataloader(self) -> Any:
        return DataLoader(self.sets[1], batch_size=5)

    def test_dataloader(self) -> Any:
        return DataLoader(self.test_set, batch_size=5)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return 2 * batch[0], batch[1]


class LoadersAndModel(LoadersInside):
    """Around a model of the config, which asks for the number of classes."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.net = model  # pyright: ignore


class NeedsTooMuch(Plain):
    """Asks in its third step for more memory than any machine has."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 2:
            torch.empty(2**60)
        return super().training_step(batch, batch_idx)
