"""Memory of the device: its peaks, and what a run says that needs more than there is."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..base.errors import Explained
from ..base.heartbeat import heartbeat
from ..config.locate import locate
from ..config.schema import Config
from ..config.strategy_class import declarations_before_import, declarations_of

GB = 1e9


class OutOfMemory(Explained):
    """A device or the host has less memory than the run needs."""


def peaks(device: torch.device) -> dict[str, float]:
    """Peaks in GB since the last call, allocated by tensors and reserved by the allocator; empty but on CUDA."""
    if device.type != "cuda":
        return {}
    allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    return {"memory/allocated_gb": allocated / GB, "memory/reserved_gb": reserved / GB}


@contextmanager
def memory_errors(config: Config) -> Iterator[None]:
    """Context that turns an allocator's error into OutOfMemory, with what would need less; others pass unchanged."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        # torch's next sentences advise on its allocator
        first = ". ".join(str(error).split(". ")[:2]).strip() or "the host has no memory left"
        less = "\n       ".join(_less(config))
        raise OutOfMemory(f"out of memory in step {heartbeat.step + 1}: {first}\n  try: {less}") from error


def _is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    # neither the CPU's allocator nor cuBLAS and cuDNN have classes of errors of their own
    named = any(name in str(error) for name in ("DefaultCPUAllocator", "STATUS_ALLOC_FAILED"))
    return named or isinstance(error, MemoryError | torch.OutOfMemoryError)


def _less(config: Config) -> Iterator[str]:
    """Overrides with which the run needs less memory."""
    target = config.strategy.target
    declared = declarations_before_import(target) or declarations_of(locate(target))
    parts = 2 * config.trainer.accumulate_grad_batches
    if config.batch_size >= parts * config.topology.workers:
        yield f"trainer.accumulate_grad_batches={parts} (the same batch, in more parts)"
    if not config.trainer.activation_checkpointing and declared.can_recompute:
        yield "trainer.activation_checkpointing=true (repeated blocks are computed again in the backward)"
    if config.trainer.precision == "32-true":
        yield "trainer.precision=bf16-mixed (activations of half the size)"
    if config.topology.workers > 1 and declared.replicates_parameters:
        yield "strategy=fsdp (parameters, gradients and optimizer states divided among the workers)"
    yield "a smaller batch_size (leyden find batch_size, with the same overrides, finds the largest that fits)"
    yield "a smaller model or image size"
