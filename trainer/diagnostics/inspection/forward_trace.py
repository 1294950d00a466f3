"""A forward pass seen from outside: feature maps by layer, and the kinds of layers that a network uses."""

from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Rectifier = Callable[[Tensor], Tensor]

_RELU = {"relu", "relu_"}
_ADD = {"add", "add_", "__add__", "__iadd__", "__radd__"}
_MAX_POOL = {"max_pool2d", "max_pool2d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool2d_with_indices"}


class ForwardTrace(TorchFunctionMode):
    """Context around forward passes that keeps feature maps and notes what is called.

    Feature maps are the outputs of ReLU of four dimensions, by the name of the layer with weights before it; of a
    network without such ReLU, the outputs of its layers with weights. Only the first pass of a shared layer counts.
    Functions are intercepted rather than modules, since networks call `torch.nn.functional` as well.

    Args:
        network: in evaluation mode.
        wanted: names of layers whose maps are kept; None: of all.
        rectifier: takes the place of ReLU.

    Attributes:
        relu_maps, output_maps: maps (batch, maps, height, width) by layer, in order of computation.
        heads: input and module of each `nn.Linear`, in order of computation.
        relu, max_pooling, strides, branches: whether there are ReLUs, max-pooling, convolutions with strides, sums of
            two maps.
    """

    def __init__(self, network: nn.Module, wanted: Collection[str] | None = None, rectifier: Rectifier | None = None):
        super().__init__()
        self._network, self._wanted, self._rectifier = network, wanted, rectifier
        self._layer = ""
        self._hooks = ExitStack()
        self.relu_maps: dict[str, Tensor] = {}
        self.output_maps: dict[str, Tensor] = {}
        self.heads: list[tuple[Tensor, nn.Linear]] = []
        self.relu = self.max_pooling = self.strides = self.branches = False

    @property
    def maps(self) -> dict[str, Tensor]:
        return self.relu_maps or self.output_maps

    def __enter__(self) -> "ForwardTrace":
        for name, module in layers_with_weights(self._network):
            self._hooks.callback(module.register_forward_pre_hook(self._before(name)).remove)
            self._hooks.callback(module.register_forward_hook(self._after(name)).remove)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._hooks.close()

    def _before(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._layer = name
            if isinstance(module, nn.Linear):
                self.heads.append((inputs[0], module))
            if isinstance(module, nn.Conv2d):
                self.strides |= max(module.stride) > 1

        return hook

    def _after(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            self._keep(self.output_maps, name, output)

        return hook

    def _keep(self, kept: dict[str, Tensor], name: str, maps: Any) -> None:
        wanted = name not in kept and (self._wanted is None or name in self._wanted)
        if wanted and isinstance(maps, Tensor) and maps.ndim == 4:
            kept[name] = maps

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _RELU:
            self.relu = True
            output = func(*args, **kwargs) if self._rectifier is None else _in_place_of_relu(
                self._rectifier, name == "relu_" or bool(kwargs.get("inplace")), *args, **kwargs
            )  # fmt: skip
            self._keep(self.relu_maps, self._layer, output)
            return output
        self.max_pooling |= name in _MAX_POOL
        self.branches |= name in _ADD and _are_maps(args)
        return func(*args, **kwargs)


def layers_with_weights(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules with a weight of two or more dimensions of their own, by name."""
    return [
        (name or type(module).__name__, module)
        for name, module in network.named_modules()
        if any(parameter.ndim > 1 for parameter in module.parameters(recurse=False))
    ]


def _in_place_of_relu(rectifier: Rectifier, in_place: bool, input: Tensor, *_: Any, **__: Any) -> Tensor:
    output = rectifier(input)
    return input.copy_(output) if in_place else output


def _are_maps(args: tuple[Any, ...]) -> bool:
    maps = [each for each in args if isinstance(each, Tensor) and each.ndim == 4 and not isinstance(each, nn.Parameter)]
    return len(maps) == 2 and maps[0].shape == maps[1].shape
