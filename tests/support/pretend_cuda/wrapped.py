"""A stand-in for torch's DDP, whose reducer looks for memory behind the gradients: one bucket, the strategy's hook."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Done:
    """A future with a value."""

    def __init__(self, value: Any):
        self._value = value

    def value(self) -> Any:
        return self._value

    def wait(self) -> Any:
        return self._value

    def then(self, callback: Callable[["Done"], Any]) -> "Done":
        return Done(callback(self))


class Bucket:
    """All gradients of a backward."""

    def __init__(self, parameters: list[nn.Parameter]):
        self._parameters = parameters
        self._buffer = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])

    def buffer(self) -> Tensor:
        return self._buffer

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def parameters(self) -> list[nn.Parameter]:
        return self._parameters

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def _wrap(wrapped: DistributedDataParallel, module: nn.Module, *_: Any, **__: Any) -> None:
    nn.Module.__init__(wrapped)
    wrapped.module = module
    wrapped.require_backward_grad_sync = True
    wrapped.reducer = mock.Mock()


def _forward(wrapped: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
    return wrapped.module(*args, **kwargs)


def _register(wrapped: DistributedDataParallel, state: Any, hook: Callable[[Any, Bucket], Any]) -> None:
    trained = [parameter for parameter in wrapped.module.parameters() if parameter.requires_grad]
    ready: list[nn.Parameter] = []

    def ended(parameter: nn.Parameter) -> None:
        ready.append(parameter)
        if len(ready) == len(trained):
            ready.clear()
            if wrapped.require_backward_grad_sync:
                hook(state, Bucket(trained))

    for parameter in trained:
        parameter.register_post_accumulate_grad_hook(ended)


def _moved(strategy: Any, module: nn.Module) -> None:
    module.to(strategy.root_device)


def pretend() -> None:
    """Put the stand-ins in place."""
    methods = {"__init__": _wrap, "forward": _forward, "register_comm_hook": _register}
    methods["_check_reducer_finalized"] = lambda _: None
    for name, stand_in in methods.items():
        mock.patch.object(DistributedDataParallel, name, stand_in).start()
    # FSDP2 moves parameters by their `data`, which takes a fake tensor's shape and leaves its type behind
    mock.patch("leyden.trainer.strategies.fsdp.strategy.FSDP.module_to_device", _moved).start()
    mock.patch("leyden.trainer.strategies.connect.set_group_timeout").start()  # it knows NCCL and gloo
    hooks = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
    mock.patch(f"{hooks}._allreduce_fut", lambda group, tensor: Done(tensor.div_(group.size()))).start()
