"""Which module's forward reads which parameter, learned by watching one forward."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class ParameterUse(TorchFunctionMode):
    """Watches the first forward of `root` and notes, for each parameter, the modules in whose forward it is read.

    That is not always the module that holds it: nn.MultiheadAttention reads out_proj.weight and never calls out_proj,
    a decoder may share the embedding's weight, a task may add up all weights for a penalty. A parameter that was not
    seen (an extension in C++ reads it, say) counts as read by `root`, whose forward comes before every other.

    Args:
        root: a module; the forward that is watched is the first with gradients.
        parameters: what to watch for.
        learned: called after that forward, with the modules that read each parameter, in the order given.
    """

    def __init__(self, root: nn.Module, parameters: Iterable[Tensor], learned: Callable[[list[list[nn.Module]]], None]):
        super().__init__()
        self._root = root
        self._readers: dict[int, dict[nn.Module, None]] = {id(p): {} for p in parameters}
        self._learned = learned
        self._running: list[nn.Module] = []
        self._handles = [root.register_forward_pre_hook(self._begin, prepend=True)]

    def _begin(self, root: nn.Module, inputs: Any) -> None:
        if not torch.is_grad_enabled() or self._running:
            return
        self._running.append(root)
        for module in root.modules():
            if module is not root:
                self._handles.append(module.register_forward_pre_hook(self._enter, prepend=True))
                self._handles.append(module.register_forward_hook(self._leave, always_call=True))
        self._handles.append(root.register_forward_hook(self._end, always_call=True))
        self.__enter__()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        self._running.append(module)

    def _leave(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self._running.pop()

    def _end(self, root: nn.Module, inputs: Any, outputs: Any) -> None:
        self.__exit__(None, None, None)
        for handle in self._handles:
            handle.remove()
        self._learned([list(readers) or [root] for readers in self._readers.values()])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((*args, *(kwargs or {}).values())):
            readers = self._readers.get(id(tensor))
            if readers is not None:
                readers[self._running[-1]] = None
        return func(*args, **(kwargs or {}))


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
