"""LightningModules after the patterns of public tutorials and repositories, each named; no line of them is copied.

All of them are written for Lightning's Trainer, none knows Leyden. They draw no global random numbers after their
weights, so that both trainers must come to the same bits.
"""

import math
from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MaxMetric, MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassPrecision

CLASSES = 4


def pictures(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images (samples, 1, 8, 8) with a class mean each, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    means = torch.randn(CLASSES, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return means[labels] + 0.5 * torch.randn(samples, 1, 8, 8, generator=generator), labels


class Pictures(Dataset[Any]):
    """What a batch is made of depends on `kind`: labelled, views, masked or triplets."""

    def __init__(self, kind: str, samples: int, seed: int):
        self.kind = kind
        self.images, self.labels = pictures(samples, seed)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        image, label = self.images[index], self.labels[index]
        if self.kind == "views":
            return (image, image.flip(-1)), label
        if self.kind == "masked":
            return {"image": image, "mask": (image > 0.5).long().squeeze(0)}
        if self.kind == "triplets":
            return image, image.flip(-2), self.images[(index + 1) % len(self)]
        return image, label


class TutorialData(LightningDataModule):
    def __init__(self, kind: str = "labelled", batch_size: int = 8):
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self) -> Any:
        return DataLoader(Pictures(self.hparams["kind"], 36, 1), batch_size=self.hparams["batch_size"])

    def val_dataloader(self) -> Any:
        return DataLoader(Pictures(self.hparams["kind"], 20, 2), batch_size=self.hparams["batch_size"])


class Seeded(LightningModule):
    """Makes its networks from a seed of its own."""

    def seeded(self, build: Any, seed: int = 7) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build()


def convolutional(outputs: int = CLASSES) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, outputs)
    )


def perceptron(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Supervised(Seeded):
    """lightning.ai/docs/pytorch/stable/model/train_model_basic.html: one shared step, Adam."""

    def __init__(self, lr: float = 1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = self.seeded(convolutional)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def shared_step(self, batch: Any, stage: str) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log(f"{stage}_loss", loss, prog_bar=True)
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.shared_step(batch, "train")

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self.shared_step(batch, "val")

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])


class AutoEncoder(Seeded):
    """lightning.ai/docs/pytorch/stable/starter/introduction.html: encoder and decoder, reconstruction of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = self.seeded(lambda: perceptron(64, 16, 3))
        self.decoder = self.seeded(lambda: perceptron(3, 16, 64), 8)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch[0].flatten(1)
        loss = F.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class SimCLR(Seeded):
    """uvadlc-notebooks.readthedocs.io, tutorial 17: two views, InfoNCE, AdamW, a cosine by the epoch."""

    kind = "views"

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature
        self.net = self.seeded(lambda: convolutional(8))

    def info_nce(self, batch: Any, stage: str) -> Tensor:
        views, _ = batch
        features = F.normalize(self.net(torch.cat(views)), dim=1)
        likeness = features @ features.T / self.temperature
        itself = torch.eye(len(likeness), dtype=torch.bool, device=likeness.device)
        likeness = likeness.masked_fill(itself, -9e15)
        positive = itself.roll(len(likeness) // 2, 0)
        loss = (torch.logsumexp(likeness, -1) - likeness[positive]).mean()
        rank = (likeness > likeness[positive][:, None]).sum(1)
        self.log(f"{stage}_nce", loss)
        self.log(f"{stage}_top1", (rank == 0).to(loss.dtype).mean())
        self.log(f"{stage}_mean_position", 1 + rank.to(loss.dtype).mean())
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.info_nce(batch, "train")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.info_nce(batch, "val")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-3, weight_decay=1e-4)
        epochs = self.trainer.max_epochs
        assert epochs is not None
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs, eta_min=1e-4)]


class MomentumTarget(Seeded):
    """lightning-bolts, pl_bolts/models/self_supervised/byol: a target network that follows by its own weights' mean."""

    kind = "views"

    def __init__(self) -> None:
        super().__init__()
        self.online = self.seeded(lambda: perceptron(64, 16, 8))
        self.predictor = self.seeded(lambda: perceptron(8, 8), 8)
        self.target = deepcopy(self.online).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        (one, two), _ = batch
        with torch.no_grad():
            aims = self.target(one), self.target(two)
        guesses = self.predictor(self.online(two)), self.predictor(self.online(one))
        loss = sum(1 - F.cosine_similarity(g, a).mean() for g, a in zip(guesses, aims, strict=True))
        assert isinstance(loss, Tensor)
        self.log_dict({"1_2_loss": loss, "momentum": self.momentum()})
        return loss

    def momentum(self) -> float:
        share = self.trainer.global_step / self.trainer.estimated_stepping_batches
        return 1 - 0.1 * (math.cos(math.pi * share) + 1) / 2

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        kept = self.momentum()
        for target, online in zip(self.target.parameters(), self.online.parameters(), strict=True):
            target.data = kept * target.data + (1 - kept) * online.data

    def configure_optimizers(self) -> Any:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=1e-6)


class OneCycle(Supervised):
    """lightning.ai/docs/pytorch/stable/notebooks/lightning_examples/cifar10-baseline.html: OneCycleLR by the step."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        total = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class LinearWarmup(Supervised):
    """lightning.ai notebooks, text-transformers: linear warm-up and decay over estimated_stepping_batches."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        total = int(self.trainer.estimated_stepping_batches)

        def factor(step: int) -> float:
            return step / 3 if step < 3 else max(0.0, (total - step) / (total - 3))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return [optimizer], [{"scheduler": schedule, "interval": "step", "frequency": 1, "name": "linear"}]


class HydraTemplate(Seeded):
    """ashleve/lightning-hydra-template, src/models/mnist_module.py: metric objects, best value, plateau of val/loss."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = self.seeded(convolutional)
        self.criterion = nn.CrossEntropyLoss()
        self.train_acc, self.val_acc = MulticlassAccuracy(CLASSES), MulticlassAccuracy(CLASSES)
        self.train_loss, self.val_loss = MeanMetric(), MeanMetric()
        self.val_acc_best = MaxMetric()

    def on_train_start(self) -> None:
        for metric in (self.val_loss, self.val_acc, self.val_acc_best):
            metric.reset()

    def model_step(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        x, y = batch
        logits = self.net(x)
        return self.criterion(logits, y), logits.argmax(1), y

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss, guesses, y = self.model_step(batch)
        self.train_loss(loss)
        self.train_acc(guesses, y)
        self.log("train/loss", self.train_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("train/acc", self.train_acc, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        loss, guesses, y = self.model_step(batch)
        self.val_loss(loss)
        self.val_acc(guesses, y)
        self.log("val/loss", self.val_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("val/acc", self.val_acc, on_step=False, on_epoch=True, prog_bar=True)

    def on_validation_epoch_end(self) -> None:
        self.val_acc_best(self.val_acc.compute())
        self.log("val/acc_best", self.val_acc_best.compute(), sync_dist=True, prog_bar=True)

    def configure_optimizers(self) -> Any:
        assert self.trainer.model is not None
        optimizer = torch.optim.Adam(self.trainer.model.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=0.5)
        watched = {"scheduler": schedule, "monitor": "val/loss", "interval": "epoch", "frequency": 1}
        return {"optimizer": optimizer, "lr_scheduler": watched}


class PlateauOfSteps(Supervised):
    """lightning.ai/docs, configure_optimizers: ReduceLROnPlateau of a training metric, every other step."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step", "frequency": 2, "monitor": "train_loss"},
        }


class Collections(Supervised):
    """lightning.ai/docs/torchmetrics/stable/pages/lightning.html: collections, cloned with a prefix each."""

    def __init__(self) -> None:
        super().__init__()
        both = MetricCollection([MulticlassAccuracy(CLASSES), MulticlassPrecision(CLASSES)])
        self.train_metrics, self.val_metrics = both.clone(prefix="train_"), both.clone(prefix="val_")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        scores = self(x)
        self.log_dict(self.train_metrics(scores, y))
        return F.cross_entropy(scores, y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.val_metrics.update(self(x), y)

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.val_metrics.compute())
        self.val_metrics.reset()


class DictOutputs(Supervised):
    """Lightning-AI/pytorch-lightning pull 16520, the migration of *_epoch_end: outputs kept in attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []
        self.confusion = MulticlassConfusionMatrix(CLASSES)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        scores = self(x)
        return {"loss": F.cross_entropy(scores, y), "hits": (scores.argmax(1) == y).sum(), "scores": scores.detach()}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.kept.append(outputs["loss"])
        self.log("hits", outputs["hits"].to(outputs["loss"].dtype), on_step=False, on_epoch=True, reduce_fx="sum")

    def on_train_epoch_end(self) -> None:
        self.log("epoch_loss", torch.stack(self.kept).mean())
        self.kept.clear()

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        self.confusion.update(self(x), y)
        return {"size": len(y)}

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:  # pyright: ignore
        assert outputs["size"] == len(batch[1])

    def on_validation_epoch_end(self) -> None:
        matrix = self.confusion.compute()
        self.log("recall_of_first", matrix[0, 0] / matrix[0].sum())
        self.confusion.reset()


class ParameterGroups(Supervised):
    """karpathy/minGPT, mingpt/model.py: no decay of biases and norms; and a rate of its own for the head."""

    def configure_optimizers(self) -> Any:
        head = list(self.net[-1].parameters())
        body = list(self.net[:-1].parameters())
        groups = [
            {"params": [p for p in body if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in body if p.ndim <= 1], "weight_decay": 0.0},
            {"params": head, "weight_decay": 0.0, "lr": 0.02},
        ]
        optimizer = torch.optim.AdamW(groups, lr=0.002, betas=(0.9, 0.95))
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [1], gamma=0.1)]


class FineTuning(Seeded):
    """Lightning-AI/pytorch-lightning, examples/.../computer_vision_fine_tuning.py: a backbone frozen for an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = self.seeded(lambda: convolutional(12))
        self.head = self.seeded(lambda: nn.Linear(12, CLASSES), 8)
        self.backbone.requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 0:
            self.backbone.eval()
        else:
            self.backbone.train()
        if self.current_epoch == 1:
            self.backbone.requires_grad_(True)
            optimizer: Any = self.optimizers()
            optimizer.add_param_group({"params": list(self.backbone.parameters()), "lr": 0.01})

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.head(self.backbone(x)), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1, momentum=0.9)


class VAE(Seeded):
    """AntixK/PyTorch-VAE, experiment.py: two terms of the loss, logged by log_dict; noise from its own generator."""

    def __init__(self, kld_weight: float = 0.05) -> None:
        super().__init__()
        self.encoder = self.seeded(lambda: perceptron(64, 16, 6))
        self.decoder = self.seeded(lambda: perceptron(3, 16, 64), 8)
        self.kld_weight = kld_weight
        self.noise = torch.Generator().manual_seed(3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch[0].flatten(1)
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        noise = torch.randn(mean.shape, generator=self.noise, dtype=mean.dtype)
        rebuilt = self.decoder(mean + noise * (0.5 * log_variance).exp())
        terms = {
            "reconstruction": F.mse_loss(rebuilt, x),
            "kld": -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean(),
        }
        loss = terms["reconstruction"] + self.kld_weight * terms["kld"]
        self.log_dict({**terms, "loss": loss}, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=5e-3)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)]


class Segmentation(Seeded):
    """qubvel/segmentation_models.pytorch, examples/binary_segmentation_intro: dict batches, Dice over the epoch."""

    kind = "masked"

    def __init__(self) -> None:
        super().__init__()
        self.net = self.seeded(lambda: nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1, 1)))
        self.outputs: dict[str, list[Any]] = {"train": [], "val": []}

    def shared_step(self, batch: dict[str, Tensor], stage: str) -> dict[str, Tensor]:
        logits = self.net(batch["image"]).squeeze(1)
        mask = batch["mask"].to(logits.dtype)
        guess = logits.sigmoid()
        overlap, sizes = (guess * mask).sum(), guess.sum() + mask.sum()
        hits = ((guess > 0.5) & (mask > 0.5)).sum()
        answer = {"loss": 1 - 2 * overlap / sizes, "hits": hits, "wanted": mask.sum()}
        self.outputs[stage].append({name: value.detach() for name, value in answer.items()})
        return answer

    def shared_epoch_end(self, stage: str) -> None:
        kept = self.outputs[stage]
        recall = sum(o["hits"] for o in kept) / sum(o["wanted"] for o in kept)
        self.log_dict({f"{stage}_recall": recall, f"{stage}_dice": torch.stack([o["loss"] for o in kept]).mean()})
        kept.clear()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.shared_step(batch, "train")

    def on_train_epoch_end(self) -> None:
        self.shared_epoch_end("train")

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self.shared_step(batch, "val")

    def on_validation_epoch_end(self) -> None:
        self.shared_epoch_end("val")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10, eta_min=1e-5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step", "frequency": 1}}


class MultiTask(Seeded):
    """Kendall et al. 2018, as in common multi-task modules: two heads, weights of the losses learned with them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = self.seeded(lambda: perceptron(64, 16))
        self.heads = nn.ModuleDict(
            {"label": self.seeded(lambda: nn.Linear(16, CLASSES), 8), "mean": self.seeded(lambda: nn.Linear(16, 1), 9)}
        )
        self.log_variances = nn.Parameter(torch.zeros(2))

    def losses(self, batch: Any) -> tuple[Tensor, Tensor]:
        x, y = batch
        features = self.body(x).tanh()
        mean = self.heads["mean"](features).squeeze(1)
        return F.cross_entropy(self.heads["label"](features), y), F.l1_loss(mean, x.mean((1, 2, 3)))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        losses = torch.stack(self.losses(batch))
        self.log("largest", losses.max().detach(), on_step=False, on_epoch=True, reduce_fx="max")
        self.log_dict({"label_loss": losses[0], "mean_loss": losses[1]}, on_epoch=True, batch_size=len(batch[1]))
        return {"loss": (losses * (-self.log_variances).exp() + self.log_variances).sum()}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        label, mean = self.losses(batch)
        self.log_dict({"val/label": label, "val/mean": mean})

    def configure_optimizers(self) -> Any:
        return torch.optim.RMSprop(self.parameters(), lr=1e-3)


class Distillation(Supervised):
    """pytorch.org/tutorials/beginner/knowledge_distillation_tutorial.html: a frozen teacher, soft targets."""

    def __init__(self, temperature: float = 2.0) -> None:
        super().__init__()
        self.teacher = self.seeded(lambda: convolutional(), 11).requires_grad_(False).eval()
        self.temperature = temperature

    def on_train_epoch_start(self) -> None:
        self.teacher.eval()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        scores = self(x)
        with torch.no_grad():
            soft = F.softmax(self.teacher(x) / self.temperature, dim=-1)
        guessed = F.log_softmax(scores / self.temperature, dim=-1)
        distilled = F.kl_div(guessed, soft, reduction="batchmean") * self.temperature**2
        self.log("distilled", distilled, on_step=True, on_epoch=True)
        return 0.25 * distilled + 0.75 * F.cross_entropy(scores, y)


class Triplets(Seeded):
    """Metric learning by triplets, as in pytorch.org's TripletMarginLoss: three images a sample, one network."""

    kind = "triplets"

    def __init__(self) -> None:
        super().__init__()
        self.net = self.seeded(lambda: perceptron(64, 24, 8))
        self.loss = nn.TripletMarginLoss(margin=1.0)

    def training_step(self, batch: Any) -> Tensor:  # pyright: ignore  # people leave out batch_idx
        anchor, positive, negative = (F.normalize(self.net(image), dim=1) for image in batch)
        loss = self.loss(anchor, positive, negative)
        self.log("triplet", loss, batch_size=len(batch[0]))
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adagrad(self.parameters(), lr=0.02)


class TwoSchedules(Supervised):
    """lightning.ai/docs, configure_optimizers: a list of schedulers, by the step and by the epoch."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
        decay = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return [optimizer], [{"scheduler": warmup, "interval": "step"}, decay]


class WarmupInHook(Supervised):
    """A warm-up that sets the rate of the optimizer's groups itself, in a hook (a pattern of many repositories)."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * min(1.0, (self.trainer.global_step + 1) / 4)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        norms = [p.grad.norm() for p in self.parameters() if p.grad is not None]
        self.log("grad_norm", torch.stack(norms).norm())


class MixUp(Supervised):
    """Zhang et al. 2018 inside the step, as in timm's training loop; mixing draws from its own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = torch.Generator().manual_seed(5)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        if not self.trainer.training:
            return x, y
        share = torch.rand(1, generator=self.draws, dtype=x.dtype)
        order = torch.randperm(len(x), generator=self.draws)
        targets = F.one_hot(y, CLASSES).to(x.dtype)
        return share * x + (1 - share) * x[order], share * targets + (1 - share) * targets[order]


class Transformer(Seeded):
    """uvadlc-notebooks.readthedocs.io, tutorial 15: a Vision Transformer of patches, MultiStepLR."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = self.seeded(lambda: nn.Linear(16, 8))
        self.layer = self.seeded(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 8)
        self.head = self.seeded(lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, CLASSES)), 9)
        self.place = nn.Parameter(torch.zeros(1, 4, 8))

    def forward(self, x: Tensor) -> Tensor:
        patches = x.unfold(2, 4, 4).unfold(3, 4, 4).flatten(1, 3).flatten(2)
        return self.head(self.layer(self.patch(patches) + self.place).mean(1))

    def step(self, batch: Any, stage: str) -> Tensor:
        x, y = batch
        scores = self(x)
        loss = F.cross_entropy(scores, y)
        self.log(f"{stage}_loss", loss)
        self.log(f"{stage}_acc", (scores.argmax(-1) == y).to(scores.dtype).mean())
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.step(batch, "train")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.step(batch, "val")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 2], gamma=0.1)]


class LoadersInside(Supervised):
    """lightning.ai notebooks, mnist-hello-world: data and loaders are the module's own."""

    def prepare_data(self) -> None:
        self.prepared = True

    def setup(self, stage: str) -> None:
        if stage == "fit":
            self.train_set, self.val_set = Pictures("labelled", 36, 1), Pictures("labelled", 20, 2)

    def train_dataloader(self) -> Any:
        return DataLoader(self.train_set, batch_size=8)

    def val_dataloader(self) -> Any:
        return DataLoader(self.val_set, batch_size=8)
