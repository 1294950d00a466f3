"""A config's network, task and optimizer on fake tensors: shapes without values, in no memory.

What is built here is what engine/build.py builds for one device; the data, which is not read, is a batch of the shape
that the dataset declares.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from ..base.errors import CannotStart, Problem
from ..config.declared_samples import known_of_samples
from ..config.faults import build_checked
from ..config.lightning.base_classes import overrides
from ..config.locate import locate
from ..config.schema import TASK_LOADERS, Config
from ..config.targets import build, is_data_module
from ..config.teacher import describe_teacher, find_teacher
from ..core import declarations
from ..core.callback_contract import averages_weights
from ..core.configure_optimizers import read_configure_optimizers
from ..core.keyed.dropout import SampleKeys
from ..core.keyed.modules import with_keyed_layers
from ..core.network.activation_checkpointing import checkpoint_activations
from ..core.network.freezing import Freezing
from ..core.network.optimizer import build_optimizer, optimizer_options
from ..core.network.trained_network import network_of
from ..core.protocols import Student
from ..core.task_contract import TaskContract, takes_multi_label
from ..hardware.topology import device_kind
from .torch_compat import unset_fake_temporarily

MEASURE = "leyden plan ... --from RUN, with a short run of this config"
"""Remedy for what cannot be counted."""
_UNKNOWN_CLASSES = 10


class FirstStep:
    """`self.trainer` as a task reads it in the first step of a training on one device."""

    world_size = num_devices = num_nodes = estimated_stepping_batches = num_training_batches = 1
    global_rank = local_rank = node_rank = current_epoch = global_step = 0
    training = is_global_zero = True
    sanity_checking = validating = testing = False

    def __init__(self, config: Config):
        self.max_epochs = config.trainer.max_epochs
        self.max_steps = config.trainer.max_steps
        self.accumulate_grad_batches = config.trainer.accumulate_grad_batches


@dataclass
class FakeTraining:
    """The objects of a training, on fake tensors.

    Attributes:
        image_shape: channels, height, width.
        classes: of the labels; None: class scores are not computed.
        views: rows of a batch for each sample.
        averages: copies of the weights that callbacks keep, updated in each step.
    """

    config: Config
    task: LightningModule
    optimizer: Optimizer
    precision: Precision
    sample_keys: SampleKeys
    image_shape: Sequence[int]
    classes: int
    views: int
    averages: list[list[Tensor]]
    trainer: "FirstStep"

    @property
    def trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.task.parameters() if parameter.requires_grad]

    def batch(self, samples: int) -> tuple[Any, list[Tensor]]:
        """A batch as the data room's `on_after_batch_transfer` makes it, and what stays in memory with it."""
        rows = samples * self.views
        pixels = torch.empty(rows, *self.image_shape, dtype=torch.uint8)
        labels = torch.zeros(rows, dtype=torch.int64)
        if takes_multi_label(self.task):
            labels = torch.zeros(rows, self.classes)
        keys = torch.zeros(rows, dtype=torch.int64)
        self.sample_keys.set(keys)
        images = pixels.float().div_(255.0).sub_(0.5).div_(0.5)
        layout = torch.channels_last if self.config.trainer.channels_last else torch.contiguous_format
        images = images.contiguous(memory_format=layout)
        on_host = [] if device_kind(self.config.topology) == "cpu" else [pixels]
        kept = [images, labels, keys] + ([pixels] if not on_host else [])
        return self.precision.convert_input((images, labels)), kept


def fake_training(config: Config) -> FakeTraining:
    """The objects of a config's training, inside of a FakeTensorMode.

    Raises:
        CannotStart: an object cannot be built, or the shape of the images is unknown before they are read.
    """
    shape, classes = data_shapes(config)
    precision = _precision(config.trainer.precision)
    task = _task(config, shape, classes, precision)
    _quiet_log(task)
    trainer = FirstStep(config)
    task.trainer = trainer  # pyright: ignore[reportAttributeAccessIssue]
    sample_keys = SampleKeys()
    if config.trainer.exact_dropout:
        with_keyed_layers(task, sample_keys)
    checkpoint_activations(network_of(task), config.trainer.activation_checkpointing)
    Freezing(task, config.model).begin_epoch(0)
    options = optimizer_options(config, task)
    optimizer = _optimizer(config, task, options)
    averages = [
        [w.detach().to(torch.promote_types(w.dtype, torch.float32)).clone() for w in task.parameters()]
        for node in config.callbacks.values()
        if node is not None and averages_weights(locate(node.target))
    ]
    views = views_of(config, shape)
    return FakeTraining(config, task, optimizer, precision, sample_keys, shape, classes, views, averages, trainer)


def data_shapes(config: Config) -> tuple[tuple[int, ...], int]:
    """Shape of an image, and number of classes: as the dataset declares, or as dataset.assumed says, or ten.

    Raises:
        CannotStart: the shape of the images is unknown before they are read.
    """
    dataset = config.dataset
    shape, classes = (None, None)
    if dataset.target != TASK_LOADERS and not is_data_module(dataset.target):
        shape, classes = known_of_samples(dataset)
    side = dataset.arguments.get("image_size")
    if shape is None and isinstance(side, int):  # photographs, which are read in colour
        shape = (3, side, side)
    if shape is None:
        text = "the shape of its images is known only when they are read, and a plan reads nothing"
        raise CannotStart(Problem("dataset", text, dataset.target, MEASURE))
    return shape, classes or dataset.assumed.classes or _UNKNOWN_CLASSES


def _task(config: Config, shape: Sequence[int], classes: int, precision: Precision) -> LightningModule:
    """The task around the network, in its precision and layout: built on the meta device, where nothing is drawn, or
    for what fails there on the CPU; then moved to fake tensors of the CPU."""
    with unset_fake_temporarily():  # a constructor may read values
        try:
            with torch.device("meta"):
                made = _convert_task(config, _build_task(config, shape, classes), precision)
        except (RuntimeError, NotImplementedError):
            made = _convert_task(config, _build_task(config, shape, classes), precision)
    moved: dict[int, Tensor] = {}
    _move(made, moved)
    return made


def _build_task(config: Config, shape: Sequence[int], classes: int) -> LightningModule:
    known = {"classes": classes, "image_shape": shape}
    task: Any
    if config.model is None:
        task = build_checked("task", config.task, **known)
    else:
        # weights that are fetched or read are as large as those that are drawn
        node = config.model
        if node.pretrained is True:
            node = node.model_copy(update={"pretrained": False})
        task = build_checked("task", config.task, model=build_checked("model", node, **known, seed=0), **known)
    student: Any = task
    if isinstance(task, Student):
        source = find_teacher(config.task) or config.task.arguments["teacher"]["path"]
        student.set_teacher(build(describe_teacher(source).network, **known, seed=0))
    return student


def _convert_task(config: Config, task: LightningModule, precision: Precision) -> LightningModule:
    for network in _networks(task):
        if config.trainer.channels_last:
            network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # torch's stub lacks it
        precision.convert_module(network)
    return task


def _networks(task: nn.Module) -> list[nn.Module]:
    """All that a task computes with."""
    return [task, *(task.outer_networks if isinstance(task, TaskContract) else ())]


def _move(module: nn.Module, moved: dict[int, Tensor]) -> None:
    """Replace the parameters and buffers of a task by fake ones; what modules share stays shared."""
    for part in (each for network in _networks(module) for each in network.modules()):
        for group in (part._parameters, part._buffers):  # pyright: ignore[reportPrivateUsage]
            for name, tensor in group.items():
                if tensor is not None:
                    group[name] = _move_tensor(tensor, moved)  # pyright: ignore[reportArgumentType]


def _move_tensor(tensor: Tensor, moved: dict[int, Tensor]) -> Tensor:
    if id(tensor) not in moved:
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        fake = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
        vars(fake).update(vars(tensor))
        moved[id(tensor)] = fake
    return moved[id(tensor)]


def _quiet_log(task: nn.Module) -> None:
    for module in task.modules():
        if isinstance(module, LightningModule):
            for name in ("log", "log_dict"):
                object.__setattr__(module, name, _nothing)


def _nothing(*arguments: Any, **options: Any) -> None:
    """What `self.log` does without a run."""


def _precision(name: str) -> Precision:
    """Fabric's plugin of a precision, on the CPU; loss scaling is counted by the step."""
    if name == "16-mixed":
        return MixedPrecision("16-mixed", "cpu", scaler=None)
    if name == "bf16-mixed":
        return MixedPrecision("bf16-mixed", "cpu")
    if name in ("16-true", "bf16-true"):
        return HalfPrecision(name)  # pyright: ignore[reportArgumentType]  # one of the two literals
    return DoublePrecision() if name == "64-true" else Precision()


def _optimizer(config: Config, task: LightningModule, options: Any) -> Optimizer:
    if overrides(task, "configure_optimizers"):
        return read_configure_optimizers(task.configure_optimizers(), type(task).__name__)[0]
    if config.optimizer is None:
        text = f"is null, and {type(task).__name__} has no configure_optimizers"
        raise CannotStart(Problem("optimizer", text, None, "optimizer=sgd"))
    return build_optimizer(config, task, options, device_kind(config.topology))


def views_of(config: Config, shape: Sequence[int]) -> int:
    """Rows of a batch for each sample: crops of an image that the augmentation makes."""
    if config.augment is None:
        return 1
    views = declarations.of_augmentation(build(config.augment)).views
    height, width = shape[-2:]
    return 1 if views is None else len(views((height, width), 0))
