"""A chain of Linear layers whose outputs are divided among the workers, in place of one that each worker holds whole.

Worker k of K keeps the rows k of every weight matrix and bias, so that it computes the columns k of every layer's
output; between two layers the columns are gathered, as each output needs all inputs. Names of modules and parameters
stay, and so does what goes in and comes out: a worker's own samples, and the scores of all classes for them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ...base.device_copy import on_device
from ...core.batch import Part
from ...core.keyed.dropout import KeyedDropout, SampleKeys
from .p2p import P2PChannel
from .traffic import shares

ELEMENTWISE = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus,
    nn.Softsign, nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Threshold,
    nn.Dropout, nn.Flatten,
)  # fmt: skip
"""What may stand between two divided layers: what does to each column the same, whichever others are there."""


class Rows(NamedTuple):
    """Which rows of a divided parameter this worker keeps."""

    shares: list[int]
    """Rows of each worker."""
    rank: int

    @property
    def whole(self) -> int:
        return sum(self.shares)

    @property
    def first(self) -> int:
        return sum(self.shares[: self.rank])

    @property
    def own(self) -> slice:
        return slice(self.first, self.first + self.shares[self.rank])


class Layer(NamedTuple):
    """A divided Linear and what follows it up to the next one."""

    linear: nn.Linear
    compute: Callable[[Tensor], Tensor]
    """Forward, hooks included; the plain one if it is the whole chain, which then goes by `ShardedHead`."""
    rows: Rows
    after: list[nn.Module]


class Agreement(NamedTuple):
    """What all workers must know of each other before they compute together."""

    samples: list[int]
    """Rows that each worker brings."""
    weights: list[float]
    """`Part.weight` of each worker."""
    keys: list[Tensor] | None
    """Sample keys of each worker; None where no dropout asks for them."""


class ShardedHead:
    """One divided chain.

    Args:
        name: of the module, for messages.
        module: an nn.Sequential (also of such), or a Linear by itself. Its Linear layers lose the other workers' rows.
        exchange: the way to the other workers.

    Raises:
        ValueError: it has no Linear, fewer outputs than workers, or something between them that needs all columns.
    """

    def __init__(self, name: str, module: nn.Module, exchange: P2PChannel):
        self.name = name
        self.module = module
        self.exchange = exchange
        members = list(_members(name, module))
        linear = [index for index, (_, member) in enumerate(members) if type(member) is nn.Linear]
        if not linear:
            raise ValueError(f"strategy=hybrid: {name} has no Linear layer that could be divided")
        self._before = [member for _, member in members[: linear[0]]]
        self._after = [member for _, member in members[linear[-1] + 1 :]]
        self._pass_keys = SampleKeys()
        self._own_keys: SampleKeys | None = None
        self.layers: list[Layer] = []
        for position, index in enumerate(linear):
            last = position == len(linear) - 1
            between = [] if last else members[index + 1 : linear[position + 1]]
            self.layers.append(self._divide_rows(*members[index], between))
        self.inputs = self.layers[0].linear.in_features

    @property
    def outputs(self) -> list[int]:
        """Outputs of each layer, over all workers."""
        return [layer.rows.whole for layer in self.layers]

    def parameters(self) -> Iterator[tuple[nn.Parameter, Rows]]:
        """Every divided parameter."""
        for layer in self.layers:
            for parameter in layer.linear.parameters(recurse=False):
                yield parameter, layer.rows

    def _divide_rows(self, name: str, linear: nn.Module, between: Sequence[tuple[str, nn.Module]]) -> Layer:
        assert isinstance(linear, nn.Linear)
        workers, whole = self.exchange.workers, linear.out_features
        if whole < workers:
            raise ValueError(
                f"strategy=hybrid: the {whole} outputs of {name} cannot be divided among {workers} workers: at most "
                f"{whole} workers, or leave it out of model.parallel.sharded"
            )
        rows = Rows(shares(whole, workers), self.exchange.rank)
        for key, parameter in list(linear.named_parameters(recurse=False)):
            kept = parameter.detach()[rows.own].clone()
            setattr(linear, key, nn.Parameter(kept, requires_grad=parameter.requires_grad))
        linear.out_features = rows.shares[rows.rank]
        linear.register_load_state_dict_pre_hook(_take_own(rows))
        for member_name, member in between:
            self._fit(member_name, member, rows)
        compute = linear.forward if linear is self.module else linear
        return Layer(linear, compute, rows, [member for _, member in between])

    def _fit(self, name: str, member: nn.Module, rows: Rows) -> None:
        if isinstance(member, KeyedDropout) and member.shared == 0:
            self._own_keys = member.sample_keys
            member.draw_by(self._pass_keys)
            member.region = [(rows.first, rows.whole)]
        elif not isinstance(member, ELEMENTWISE) or (isinstance(member, nn.Flatten) and member.start_dim != 1):
            raise ValueError(
                f"strategy=hybrid: {name} is a {type(member).__name__}, and between two divided Linear layers only "
                "activations without parameters and Dropout may stand: a worker has some of the columns there; leave "
                "the module out of model.parallel.sharded, or name its Linear layers one by one"
            )

    def before(self, inputs: Tensor) -> Tensor:
        """What the chain does to a worker's own samples before its first Linear: shape (rows, inputs).

        Raises:
            ValueError: of another shape.
        """
        for member in self._before:
            inputs = member(inputs)
        if inputs.ndim != 2:
            shape = " x ".join(map(str, inputs.shape))
            raise ValueError(
                f"strategy=hybrid: {self.name} gets {shape} values; its Linear must get samples x features"
            )
        kind = inputs.device.type
        # autocast's Linear would round them all the same; so half the bytes travel
        return inputs.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else inputs

    def after(self, scores: Tensor) -> Tensor:
        """What the chain does to the outputs of its last Linear."""
        for member in self._after:
            scores = member(scores)
        return scores

    def columns(self, inputs: Tensor, keys: Tensor | None) -> Tensor:
        """This worker's columns of the last Linear's output, for rows that every worker has."""
        self._pass_keys.set(keys)
        for number, layer in enumerate(self.layers):
            if number:
                widths = self.layers[number - 1].rows.shares
                inputs = _apply(_GatherColumns, inputs, self.exchange, widths)
            inputs = layer.compute(inputs)
            for member in layer.after:
                inputs = member(inputs)
        return inputs

    def agree(self, inputs: Tensor, part: Part | None) -> Agreement:
        """What each worker brings: computed in training, where the order of the samples says it; else exchanged, a few
        bytes that the ledger leaves out, for which the host waits."""
        known = None if part is None or not self.module.training else _count_shares(part, self.exchange.workers)
        if known is not None and known[0][self.exchange.rank] == len(inputs):
            return Agreement(*known, self._gather_keys(known[0], inputs))
        weight = 1.0 if part is None else part.weight
        mine = torch.tensor([len(inputs), weight], dtype=torch.float64, device=inputs.device)
        gathered = [torch.empty_like(mine) for _ in range(self.exchange.workers)]
        dist.all_gather(gathered, mine)
        both = torch.stack(gathered).tolist()
        samples = [int(count) for count, _ in both]
        return Agreement(samples, [weight for _, weight in both], self._gather_keys(samples, inputs))

    def _gather_keys(self, samples: list[int], inputs: Tensor) -> list[Tensor] | None:
        keys = self._own_keys.keys if self._own_keys is not None and self.module.training else None
        if keys is None:
            return None
        mine = on_device(F.pad(keys, (0, max(samples) - len(keys))), inputs.device)
        gathered = [torch.empty_like(mine) for _ in samples]
        dist.all_gather(gathered, mine)
        return [keys[:count] for keys, count in zip(gathered, samples, strict=True)]

    def together(self, inputs: Tensor, agreed: Agreement) -> Tensor:
        """Schemes a and c: one pass over the rows of all workers; each gets the scores of its own."""
        gathered = _apply(_GatherRows, inputs, self.exchange, agreed.samples)
        keys = None if agreed.keys is None else torch.cat(agreed.keys)
        columns = self.columns(gathered, keys)
        return _apply(_ReturnRows, columns, self.exchange, agreed.samples, self.layers[-1].rows.shares)


def _count_shares(part: Part, workers: int) -> tuple[list[int], list[float]] | None:
    """Rows and weights of all workers in a part; a worker without samples brings one row of weight 0."""
    if part.step_samples is None:
        return None
    samples = shares(part.all_samples, workers)
    return [max(1, count) for count in samples], [count * workers / part.step_samples for count in samples]


def _members(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of what a chain does, one after the other."""
    if type(module) is nn.Linear:
        yield name, module
    elif isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        for child_name, child in module.named_children():
            yield from _members(f"{name}.{child_name}", child)
    else:
        yield name, module


def linears(name: str, module: nn.Module) -> list[nn.Linear]:
    """The layers of a chain that are divided."""
    return [member for _, member in _members(name, module) if type(member) is nn.Linear]


def _take_own(rows: Rows) -> Callable[..., None]:
    """A hook by which a divided layer loads its rows of whole tensors: checkpoints have the layout of one device."""

    def take(module: nn.Module, state: dict[str, Any], prefix: str, *more: Any) -> None:
        for key, _ in module.named_parameters(recurse=False):
            value = state.get(prefix + key)
            if value is not None and value.shape[0] == rows.whole:
                state[prefix + key] = value[rows.own]

    return take


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    result: Any = function.apply(*arguments)
    return result


class _GatherRows(torch.autograd.Function):
    """All workers' rows, from each its own; backward: the sum over workers of the gradient of one's own rows."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, exchange: P2PChannel, samples: list[int]) -> Tensor:
        ctx.exchange, ctx.samples = exchange, samples
        return torch.cat(exchange.gather(own, [(count, own.shape[1]) for count in samples]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.exchange.sum_scattered(gradients[0].split(ctx.samples)), None, None


class _GatherColumns(torch.autograd.Function):
    """All workers' columns, from each its own; backward: the sum over workers of the gradient of one's own columns."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, exchange: P2PChannel, widths: list[int]) -> Tensor:
        ctx.exchange, ctx.widths = exchange, widths
        return torch.cat(exchange.gather(own, [(len(own), width) for width in widths]), dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.exchange.sum_scattered(gradients[0].split(ctx.widths, dim=1)), None, None


class _ReturnRows(torch.autograd.Function):
    """All-to-all from this worker's columns of all rows to all columns of its own rows; backward: the inverse."""

    @staticmethod
    def forward(ctx: Any, columns: Tensor, exchange: P2PChannel, samples: list[int], widths: list[int]) -> Tensor:
        ctx.exchange, ctx.samples, ctx.widths = exchange, samples, widths
        pieces = list(columns.contiguous().split(samples))
        own = samples[exchange.rank]
        received = [columns.new_empty(own, width) for width in widths]
        _swap_pieces(exchange, pieces, received)
        return torch.cat(received, dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        exchange: P2PChannel = ctx.exchange
        pieces = [piece.contiguous() for piece in gradients[0].split(ctx.widths, dim=1)]
        own = ctx.widths[exchange.rank]
        received = [gradients[0].new_empty(count, own) for count in ctx.samples]
        _swap_pieces(exchange, pieces, received)
        return torch.cat(received), None, None, None


def _swap_pieces(exchange: P2PChannel, pieces: Sequence[Tensor], received: list[Tensor]) -> None:
    """Piece i goes to worker i, and from worker i comes what is put in place i."""
    received[exchange.rank] = pieces[exchange.rank]
    others = exchange.others
    exchange.swap([(w, pieces[w]) for w in others], [(w, received[w]) for w in others])
