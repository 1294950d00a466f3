"""Settings of torch by which it chooses among its kernels, for the whole process."""

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import torch

from ..config.schema import Config


@contextmanager
def hold_kernels(config: Config) -> Generator[None]:
    """Inside the context torch chooses its kernels as `config.trainer` asks for. After it, as before: the next run of
    this process, or its user's own code, may ask for others."""
    trainer = config.trainer
    with ExitStack() as restored:
        deterministic = torch.are_deterministic_algorithms_enabled()
        if trainer.deterministic != deterministic:  # it imports torch's compiler
            warns = torch.is_deterministic_algorithms_warn_only_enabled()
            restored.callback(torch.use_deterministic_algorithms, deterministic, warn_only=warns)
            torch.use_deterministic_algorithms(trainer.deterministic)
        if trainer.benchmark or trainer.deterministic:
            restored.callback(setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
            torch.backends.cudnn.benchmark = not trainer.deterministic
        if trainer.matmul_precision is not None:
            restored.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision(trainer.matmul_precision)
        if trainer.deterministic:
            # it stays: another thread may read the environment while a variable is removed from it
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        yield
