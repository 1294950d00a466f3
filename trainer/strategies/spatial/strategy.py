"""strategy=spatial: layers without shared weights, tiled over a 2-D grid of workers (COTS HPC)."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from datetime import timedelta
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.strategies import DDPStrategy
from lightning.pytorch import LightningModule
from PIL.Image import Image
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from ...base.errors import Problem
from ...config.schema import Config
from ...core.checkpoints.sharded_checkpoint import CheckpointShards, Shard, TensorSlice
from ...core.lightning_compat import BackwardSyncControl
from ...core.strategy_contract import StrategyContract
from ...core.traffic import Ledger, Workload
from ...core.transfers import DeviceShare, Placement, Transfer
from ..declarations import OwnBatchShares
from .checks import problems
from .device_share import path_of, tiled_share
from .dry_run import leave_meta
from .grid import Grid
from .halo_exchange import DryRun, HaloChannel
from .picture import tiling_picture
from .tiling import Region, materialize


class Spatial(OwnBatchShares, StrategyContract, DDPStrategy):
    """Every worker k owns a rectangle R_k of every map's positions, all channels, the whole batch (Coates et al. 2013).

    For a layer y[p] = f(W[p], x[window(p)]) whose weights W[p] belong to one position p:

        forward   x[halo_k] from its owners, then y[p] for p in R_k;  halo_k = window(R_k) without R_k
        backward  dW[p] for p in R_k, complete: no worker but k has W[p];  dx[halo_k] to its owners, who add it up

    Weights and their gradients never move. What is summed over positions (a cost) is all-reduced; a map that leaves the
    tiled part of the model (parallel.tiled in the model's YAML) is gathered, and every worker computes the rest in the
    same way. Parameters that positions of the tiled part share have their gradients summed.

    On the wire, a step and worker, the mean over workers: 2 C B s |halo_k| bytes for each layer (C channels of its
    input, B samples, s bytes a value; once forward, once backward), nothing for the first layer, as every worker reads
    the whole images; (K - 1) / K C B s H W to gather a map; 2 (K - 1) / K s for each summed value. Messages travel
    while the positions that need no neighbour are computed.

    A worker never holds more than its share: the model is built on the meta device, and a tile draws the weights of its
    own positions. Equal to `single` on any grid; with grid [1, 1] it is `single`.

    Coates, Huval, Wang, Wu, Ng, Catanzaro: Deep learning with COTS HPC systems, ICML 2013.

    Args:
        grid: rows and columns of workers; None: as square as their number allows. Workers are numbered row by row.
        timeout_s: a collective that takes longer raises.
        parallel: `tiled`, the names of the modules that are divided; from the model's YAML.
    """

    ledger: Ledger

    def __init__(
        self,
        grid: Sequence[int] | None = None,
        timeout_s: float = 1800,
        parallel: dict[str, Any] | None = None,
    ):
        super().__init__(timeout=timedelta(seconds=timeout_s))
        self._asked_grid = grid
        self._tiled_names: list[str] = list((parallel or {}).get("tiled", []))
        self._backward_sync_control = _SpatialSyncControl(self)
        self.sums_shared = True
        """Whether this backward is a step's last: gradients of shared parameters are summed after it."""
        self._regions: list[Region] = []
        self._places: dict[int, tuple[tuple[int, int], tuple[int, int]]] = {}
        """Place of each tiled parameter, by id: its first row and column, and rows and columns of the whole."""
        self._shared: list[nn.Parameter] = []
        self._replicated: list[nn.Parameter] = []

    @override
    @staticmethod
    def validate_config(config: Config) -> Iterator[Problem]:
        """Problems of a config."""
        return problems(config)

    # --- set up

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        workers = self.num_nodes * self.num_processes
        placement = Placement(workers, self.num_processes)
        # None in the base: it is counted always, from here on
        self.ledger = Ledger(self.global_rank, placement, self.root_device)  # pyright: ignore[reportIncompatibleVariableOverride]
        self.grid = self._grid_of(workers)
        self._link = HaloChannel(self.ledger, self._timeout)

    def _grid_of(self, workers: int) -> Grid:
        grid = Grid(*self._asked_grid) if self._asked_grid is not None else Grid.of(workers)
        if grid.workers != workers:
            raise ValueError(f"strategy.grid=[{grid.gy}, {grid.gx}] is not made of {workers} workers")
        return grid

    @override
    def batch_share(self) -> tuple[int, int]:
        """Every worker sees the whole batch."""
        return 0, 1

    @override
    def build_context(self) -> AbstractContextManager[Any]:
        return torch.device("meta")

    @override
    def module_to_device(self, module: nn.Module) -> None:
        """Moves what has memory; `setup_module` gives the rest its own."""
        if not any(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()]):
            module.to(self.root_device)

    @override
    def setup_module(self, module: nn.Module) -> nn.Module:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The same module, tiled in place.

        Raises:
            ValueError: nothing to tile, a layer that cannot be divided, a map smaller than the grid.
        """
        self._regions = self._tile(module, self.grid, self.global_rank, self._link)
        materialize(module, self.root_device)
        module.to(self.root_device)
        self._sort_parameters(module)
        self._link.connect(self.root_device)
        return module

    def _tile(self, module: nn.Module, grid: Grid, rank: int, link: HaloChannel) -> list[Region]:
        """Tile the parts of a module that the model names, in place."""
        if not self._tiled_names:
            raise ValueError("strategy=spatial: the model has no part that can be tiled (parallel.tiled in its YAML)")
        regions: list[Region] = []
        tag = 0
        for name in self._tiled_names:
            path = path_of(module, name)
            region = Region(module.get_submodule(path), path, grid, rank, link, tag)
            parent, _, own = path.rpartition(".")
            setattr(module.get_submodule(parent), own, region.module)
            regions.append(region)
            tag = region.next_tag + 100  # room for the gathering of maps
        return regions

    def _sort_parameters(self, module: nn.Module) -> None:
        for region in self._regions:
            for tile in region.tiles:
                for name in tile.positional:
                    first = (tile.rows.start, tile.cols.start)
                    self._places[id(getattr(tile, name))] = first, tile.output_shape[1:]
                tile.register_load_state_dict_pre_hook(self._cut_to_tile)
        self._shared = _shared_of(self._regions)
        shared = {id(p) for p in self._shared}
        self._replicated = [p for p in module.parameters() if id(p) not in self._places and id(p) not in shared]
        if not self._places and not self._shared:
            raise ValueError(f"parallel.tiled={self._tiled_names} holds no parameters")

    # --- training

    @override
    def backward(self, tensor: Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        super().backward(tensor, module, *args, **kwargs)
        if self.sums_shared:
            _sum_gradients(self._shared, self._link)
        self._link.drain()

    @override
    def clip(self, module: Any, optimizer: Any, value: float, algorithm: str) -> Tensor | None:
        """Clip by value as everywhere; by the norm over all tiles, and over what each worker has a copy of."""
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if algorithm == "value":
            nn.utils.clip_grad_value_(parameters, value)
            return None
        tiled = [p.grad for p in parameters if id(p) in self._places]
        rest = [p.grad for p in parameters if id(p) not in self._places]
        squares = _sum_of_squares(tiled, self.root_device)
        self._link.total(squares, "norm of the gradient", "update")
        norm = torch.sqrt(squares + _sum_of_squares(rest, self.root_device))
        factor = (value / (norm + 1e-6)).clamp(max=1.0)
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.mul_(factor.to(parameter.grad.dtype))
        return norm

    @override
    def flush_pending_updates(self, task: LightningModule) -> None:
        """Copies stay equal, also on devices whose kernels are not deterministic."""
        if self.grid.workers > 1 and self.root_device.type != "cpu":
            tensors = [*self._replicated, *self._shared, *task.buffers()]
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)

    # --- what is known and saved of the whole

    @override
    def parameter_count(self, task: nn.Module) -> int:
        return sum(prod(self._whole_shape(parameter)) for parameter in task.parameters())

    def _whole_shape(self, parameter: Tensor) -> tuple[int, ...]:
        place = self._places.get(id(parameter))
        return tuple(parameter.shape) if place is None else (*place[1], *parameter.shape[2:])

    @override
    def traffic(self, workload: Workload) -> list[Transfer]:
        """Transfers of worker 0's forward and backward of the whole batch, in tensors without memory; what clipping by
        norm adds, one number, is not counted."""
        from ...core.network.fake_tensors import FakeTensorMode  # costs a training nothing

        placement, link = workload.placement, DryRun(workload.placement)
        network, half = deepcopy(workload.network).to("meta").eval(), workload.activation_bytes == 2
        # not on the meta device: layers of the tiled part ask for the autocast of their device, which meta lacks
        with FakeTensorMode(allow_non_fake_inputs=True), torch.autocast("cpu", torch.bfloat16, enabled=half):
            leave_meta(network)
            regions = self._tile(network, self._grid_of(placement.workers), 0, link)
            dtype = next(network.parameters()).dtype
            images = torch.empty(workload.batch_size, *workload.image_shape, dtype=dtype)
            workload.forward(network, images).sum().backward()
            _sum_gradients(_shared_of(regions), link)
        return link.transfers

    @override
    def device_share(self, workload: Workload) -> DeviceShare:
        network = workload.network
        item_bytes = workload.activation_bytes or workload.parameters[0].element_size()
        paths, grid = [path_of(network, name) for name in self._tiled_names], self._grid_of(workload.placement.workers)
        return tiled_share(network, paths, grid, workload.batch_size, item_bytes)

    def _tiled_parameters(self, task: nn.Module) -> dict[str, nn.Parameter]:
        return {name: p for name, p in task.named_parameters() if id(p) in self._places}

    @override
    def pictures(self) -> dict[str, Image]:
        layers = [(tile.forward.name, tile.forward.layer) for region in self._regions for tile in region.tiles]
        return {"spatial/tiling": tiling_picture(self.grid, layers)} if self.grid.workers > 1 else {}

    @override
    def full_state(self, task: LightningModule, optimizer: Optimizer) -> dict[str, Any]:
        """Values that are the same on every worker; tiles are in `shard`."""
        tiled = self._tiled_parameters(task)
        saved = optimizer.state_dict()
        parameters = _number_parameters(optimizer)
        state = {
            number: {
                key: value for key, value in kept.items() if not self._is_tile(value, parameters[number])
            } for number, kept in saved["state"].items()
        }  # fmt: skip
        model = {name: value for name, value in task.state_dict().items() if name not in tiled}
        return {"model": model, "optimizer": {**saved, "state": state}}

    def _is_tile(self, value: Any, parameter: Tensor) -> bool:
        """Whether a value of an optimizer's state belongs to the positions of a tiled parameter."""
        return id(parameter) in self._places and isinstance(value, Tensor) and value.shape == parameter.shape

    @override
    def shard(self, task: LightningModule, optimizer: Optimizer) -> Shard:
        pieces = {f"model/{name}": self._piece(p, p) for name, p in self._tiled_parameters(task).items()}
        for number, parameter in _number_parameters(optimizer).items():
            for key, value in optimizer.state.get(parameter, {}).items():
                if self._is_tile(value, parameter):
                    pieces[f"optimizer/{number}/{key}"] = self._piece(value, parameter)
        return Shard(pieces)

    @override
    def full_tensors(self, task: nn.Module, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Those of the tensors, in the shape of this worker's parameters, that are the same on every worker."""
        tiled = self._tiled_parameters(task)
        return {name: value for name, value in values.items() if name not in tiled}

    @override
    def tensor_slices(self, task: nn.Module, values: dict[str, Tensor]) -> dict[str, TensorSlice]:
        """This worker's tiles of the same tensors."""
        return {name: self._piece(values[name], parameter) for name, parameter in self._tiled_parameters(task).items()}

    @override
    def local_tensors(
        self, task: nn.Module, saved: dict[str, Tensor], shards: CheckpointShards | None, prefix: str
    ) -> dict[str, Tensor]:
        """The inverse of both: of tiled tensors no more than the own rectangles are read."""
        parameters = task.named_parameters()
        return {name: self._part(shards, prefix + name, saved.get(name), p) for name, p in parameters}

    def _piece(self, tensor: Tensor, parameter: Tensor) -> TensorSlice:
        first, _ = self._places[id(parameter)]
        return TensorSlice(tensor.detach(), (*first, *[0] * (tensor.ndim - 2)), self._whole_shape(parameter))

    @override
    def load_full_state(
        self, task: LightningModule, optimizer: Optimizer | None, state: dict[str, Any], shards: CheckpointShards | None
    ) -> None:
        """Load a checkpoint of any strategy and grid: of tiled tensors the own rectangles are read, and no more."""
        parameters = dict(task.named_parameters())
        names = {*state["model"], *_divide(shards, "model/")}
        model = {
            name: self._part(shards, f"model/{name}", state["model"].get(name), parameters.get(name)) for name in names
        }
        task.load_state_dict(model)
        if optimizer is None:
            return
        kept: dict[int, dict[str, Any]] = {}
        for number, parameter in _number_parameters(optimizer).items():
            whole = state["optimizer"]["state"].get(number, {})
            keys = {*whole, *_divide(shards, f"optimizer/{number}/")}
            if keys:
                name = f"optimizer/{number}"
                kept[number] = {k: self._part(shards, f"{name}/{k}", whole.get(k), parameter) for k in sorted(keys)}
        optimizer.load_state_dict({**state["optimizer"], "state": kept})

    def _part(self, shards: CheckpointShards | None, name: str, whole: Any, parameter: Tensor | None) -> Any:
        """This worker's part of a saved value."""
        tiled = parameter is not None and id(parameter) in self._places
        if shards is not None and name in shards.tensors:
            if parameter is None or not tiled or tuple(shards.tensors[name]["shape"]) != self._whole_shape(parameter):
                return shards.whole(name)
            first, _ = self._places[id(parameter)]
            return shards.region(name, (*first, *[0] * (parameter.ndim - 2)), parameter.shape)
        return self._own_part(whole, parameter) if parameter is not None else whole

    def _own_part(self, whole: Any, parameter: Tensor) -> Any:
        """This worker's part of a tensor with the shape of the whole parameter; anything else as it is."""
        place = self._places.get(id(parameter))
        if place is None or not isinstance(whole, Tensor) or tuple(whole.shape) != self._whole_shape(parameter):
            return whole
        (row, col), _ = place
        return whole[row : row + parameter.shape[0], col : col + parameter.shape[1]].clone()

    def _cut_to_tile(self, tile: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """A tile's load_state_dict takes tensors of the whole layer as well."""
        for name in tile.positional:
            if prefix + name in state:
                state[prefix + name] = self._own_part(state[prefix + name], getattr(tile, name))

    @override
    def full_shapes(self, task: nn.Module) -> dict[str, torch.Size]:
        parameters = dict(task.named_parameters())
        shapes = {name: value.shape for name, value in task.state_dict().items() if isinstance(value, Tensor)}
        return {n: torch.Size(self._whole_shape(parameters[n])) if n in parameters else s for n, s in shapes.items()}


class _SpatialSyncControl(BackwardSyncControl):
    """Marks the backwards that are not a step's last."""

    def __init__(self, strategy: Spatial):
        self._strategy = strategy

    @contextmanager
    def no_backward_sync(self, module: nn.Module, enabled: bool) -> Iterator[None]:
        before, self._strategy.sums_shared = self._strategy.sums_shared, not enabled
        try:
            yield
        finally:
            self._strategy.sums_shared = before


def _shared_of(regions: Iterable[Region]) -> list[nn.Parameter]:
    """Parameters of tiled parts that positions share."""
    shared: list[nn.Parameter] = []
    for region in regions:
        positional = {id(getattr(tile, name)) for tile in region.tiles for name in tile.positional}
        shared += [p for p in region.module.parameters() if id(p) not in positional]
    return shared


def _sum_gradients(shared: Iterable[nn.Parameter], link: HaloChannel) -> None:
    """Sum the gradients of shared parameters: each worker has those of its own positions."""
    gradients = [p.grad for p in shared if p.grad is not None]
    for dtype in sorted({g.dtype for g in gradients}, key=str):
        alike = [g for g in gradients if g.dtype == dtype]
        flat = torch.cat([g.flatten() for g in alike])
        link.total(flat, "gradients of shared parameters", "backward")
        for gradient, summed in zip(alike, flat.split([g.numel() for g in alike]), strict=True):
            gradient.copy_(summed.view_as(gradient))


def _number_parameters(optimizer: Optimizer) -> dict[int, Tensor]:
    """The optimizer's parameters under the numbers that its state_dict gives them."""
    return dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))


def _divide(shards: CheckpointShards | None, prefix: str) -> list[str]:
    return [] if shards is None else [n.removeprefix(prefix) for n in shards.tensors if n.startswith(prefix)]


def _sum_of_squares(tensors: Iterable[Tensor | None], device: torch.device) -> Tensor:
    norms = [torch.linalg.vector_norm(t) for t in tensors if t is not None]
    if not norms:
        return torch.zeros((), device=device)
    dtype = torch.promote_types(norms[0].dtype, torch.float32)
    return torch.stack([norm.to(dtype) for norm in norms]).square().sum()
