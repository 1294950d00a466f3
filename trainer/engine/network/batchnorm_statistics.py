"""Running statistics of BatchNorm for other weights than those trained, such as an average of weights."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ...base import rng
from ...base.heartbeat import EVALUATION, heartbeat
from ...core.hooks import positional
from ...core.lightning_adapter import batch_transfer
from ...core.metric_log import MetricLog
from ...core.state import RunState
from ...core.sync_batchnorm import statistics_kept, with_synchronized_norms
from ...core.torch_compat import BatchNormBase
from ..step_module import run_step, untouched_metrics


def batchnorm_statistics(state: RunState) -> dict[str, Tensor]:
    """Statistics of the task's present weights over the training data. A collective, between two steps.

    As torch.optim.swa_utils.update_bn takes them: the cumulative mean over batches (Izmailov et al. 2018, algorithm 1).
    The batches are those of epoch 0, in its order and with its augmentation, each normalized over the samples of all
    workers, whatever trainer.sync_batchnorm is; so one worker and several find the same, in every pass. All but
    BatchNorm is in evaluation mode: dropout, unlike in update_bn, is off, as where the statistics are used. Frozen
    BatchNorm is left out. The task, its own statistics and metrics, and the generators are left as they were.

    Returns:
        Buffers by their names in the task; empty without BatchNorm.
    """
    norms = {name: module for name, module in state.task.named_modules() if _has_statistics(module)}
    if not norms:
        return {}
    random = rng.capture(state.fabric.device)
    with statistics_kept(state.task, of_all_workers=True), _collecting(state, list(norms.values())):
        transfer, taken = batch_transfer(state), positional(state.task.training_step)
        for index, part in enumerate(state.data.train_parts(0, 0, state.steps_per_epoch)):
            heartbeat.beat()
            state.sample_keys.set(part.keys)
            state.padding.now = part.samples == 0
            run_step(state, "training_step", *(transfer(part.batch), index)[:taken])
        found = {
            f"{name}.{buffer}": value.clone()
            for name, norm in norms.items()
            for buffer, value in norm.named_buffers(recurse=False)
        }
    rng.restore(random, state.fabric.device)
    return found


def _has_statistics(module: nn.Module) -> bool:
    """Whether it is a BatchNorm with running statistics, not all of whose parameters are frozen."""
    if not isinstance(module, BatchNormBase) or module.running_mean is None:
        return False
    own = list(module.parameters(recurse=False))
    return not own or any(parameter.requires_grad for parameter in own)


@contextmanager
def _collecting(state: RunState, norms: Sequence[nn.Module]) -> Generator[None, None, None]:
    """These layers in training mode, their statistics reset and cumulative, over all workers; nothing is logged."""
    modes = [(module, module.training) for module in state.module.modules()]
    kept = [(norm, norm.__class__, norm.momentum) for norm in norms if isinstance(norm, BatchNormBase)]
    log, state.log = state.log, MetricLog("train", steps_by_default=True, owner=state.task)
    state.module.eval()
    # a worker that has all samples, as under strategy=spatial, has the statistics of all
    if state.contract.batch_share()[1] > 1:
        for norm in norms:
            with_synchronized_norms(norm, state.padding)
    for norm, _, _ in kept:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    try:
        with torch.no_grad(), untouched_metrics(state.task), heartbeat.phase(EVALUATION, "statistics"):
            yield
    finally:
        for norm, kind, momentum in kept:
            norm.__class__, norm.momentum = kind, momentum
        for module, training in modes:
            module.training = training
        state.log = log
        state.sample_keys.set(None)
        state.padding.now = False
