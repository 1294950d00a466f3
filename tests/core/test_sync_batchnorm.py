"""trainer.sync_batchnorm: statistics of the global batch, padding left out, sums in float32."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from pool import Pool
from runs import HERE, Freeze, distance, metrics, weights
from tables import thinned
from torch import Tensor, nn

from leyden.trainer.core.sync_batchnorm import GlobalBatchNorm, Padding, statistics_kept, with_synchronized_norms
from leyden.trainer.entrypoints.start import start

Pools = Callable[[int], Pool]
EXACT = ["trainer.precision=64-true", "trainer.sync_batchnorm=true", "trainer.enable_progress_bar=false",
         "schedule=constant", "optimizer=sgd", "optimizer.lr=0.05", "trainer.max_epochs=2"]  # fmt: skip
FEW = ["dataset=synthetic", "dataset.samples=20", "dataset.image_shape=[3,8,8]", "batch_size=6"]
"""Three batches of 6 and one of 2: fewer than three workers."""
ONE_LEFT = [*FEW, "dataset.samples=13"]
"""Two batches of 6 and one of a single sample."""
NORMED = [HERE, "model=mlp", "~model.hidden", "~model.dropout",
          "model._target_=hybrid_examples.Normed"]  # fmt: skip
"""Convolution, batch normalization, and a head that hybrid divides."""


def workers(count: int, strategy: str, *options: str) -> list[str]:
    return [f"strategy={strategy}", f"topology.devices_per_node={count}", *options]


def equal(freeze: Freeze, pools: Pools, count: int, options: list[str], strategy: list[str]) -> None:
    one, several = freeze("one", *options), freeze("several", *options, *strategy)
    assert start(one) == 0
    pools(count).run(several)
    assert distance(weights(several), weights(one)) <= 1e-9
    for name in ("val/loss", "val/acc", "test/loss"):
        assert metrics(several)[name] == pytest.approx(metrics(one)[name], rel=1e-9), name


@pytest.mark.slow
def test_padding_counts_nowhere_with_fewer_samples_than_workers(freeze: Freeze, pools: Pools) -> None:
    equal(freeze, pools, 3, [*EXACT, *FEW, "model=resnet20", "trainer.max_epochs=1"], workers(3, "ddp"))


PADDED = {
    "ddp": [*NORMED, *ONE_LEFT],
    # parts of 3, and of the last batch one of a single sample
    "ddp accumulating": [*NORMED, *FEW, "dataset.samples=15", "trainer.accumulate_grad_batches=2"],
    "butterfly": [*NORMED, *ONE_LEFT],
    "hybrid": [*NORMED, *ONE_LEFT, "model.parallel.sharded=[head]"],
    "fsdp": [*NORMED, *ONE_LEFT],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", thinned(PADDED, in_ci=["ddp accumulating", "hybrid", "fsdp"]))
def test_padding_counts_nowhere_under(freeze: Freeze, pools: Pools, case: str) -> None:
    options = [*EXACT, *PADDED[case]]
    own = {"fsdp": ["strategy.min_parameters=100"]}.get(case, [])
    equal(freeze, pools, 2, options, workers(2, case.split()[0], *own))


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone: the module's own arithmetic, one worker."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def pair(padding: Padding | None = None) -> tuple[nn.BatchNorm2d, GlobalBatchNorm]:
    """torch's module and ours, with the same parameters."""
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(3), nn.BatchNorm2d(3)]
    for norm in norms:
        torch.manual_seed(1)
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    ours = with_synchronized_norms(norms[1], padding or Padding())
    assert isinstance(ours, GlobalBatchNorm)
    return norms[0], ours


def images(offset: float = 5.0) -> Tensor:
    return torch.randn(16, 3, 9, 7, generator=torch.Generator().manual_seed(2)) * 2 + offset


def gradients(norm: nn.Module, input: Tensor) -> tuple[Tensor, list[Tensor]]:
    leaf = input.clone().requires_grad_()
    output = norm(leaf)
    (output.float() * images(0.0)).sum().backward()
    assert leaf.grad is not None
    return output.detach(), [leaf.grad, *(p.grad for p in norm.parameters() if p.grad is not None)]


def test_equal_to_torch_in_float64(group: None) -> None:
    theirs, ours = pair()
    theirs.double()
    ours.double()
    (one, one_gradients), (two, two_gradients) = (gradients(norm, images().double()) for norm in (theirs, ours))
    for a, b in zip([one, *one_gradients, *theirs.buffers()], [two, *two_gradients, *ours.buffers()], strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)
    theirs.eval()
    ours.eval()
    assert torch.allclose(theirs(images().double()), ours(images().double()), rtol=1e-12)


def test_variance_survives_a_large_mean(group: None) -> None:
    """Sums of squares in float32 would leave nothing of it."""
    _, ours = pair()
    ours.momentum = 1.0
    input = images(offset=0.0) / 2
    shifted = input * 4 + 2.0**13
    ours(shifted)
    exact = shifted.double().var((0, 2, 3))
    assert ours.running_var is not None
    assert torch.allclose(ours.running_var.double(), exact, rtol=1e-5)


def test_under_bf16_autocast_as_torch(group: None) -> None:
    theirs, ours = pair()
    input = images().bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (one, one_gradients), (two, two_gradients) = (gradients(norm, input) for norm in (theirs, ours))
    assert one.dtype == two.dtype == torch.bfloat16
    for a, b in zip(theirs.buffers(), ours.buffers(), strict=True):
        assert a.dtype == b.dtype
        assert torch.allclose(a.double(), b.double(), rtol=2e-6)
    step = 2.0**-8
    assert torch.allclose(one.float(), two.float(), rtol=step, atol=step)
    for a, b in zip(one_gradients, two_gradients, strict=True):
        assert a.dtype == b.dtype
        assert torch.allclose(a.float(), b.float(), rtol=step, atol=step * float(a.float().abs().max()))


def test_converted_to_bf16_the_statistics_stay_in_float32(group: None) -> None:
    theirs, ours = pair()
    theirs.double()
    ours.bfloat16()
    input = images().bfloat16()
    for _ in range(300):  # a tenth of a step below bf16's resolution would be lost each time
        theirs(input.double())
        assert ours(input).dtype == torch.bfloat16
    for mine, exact in zip(
        (ours.running_mean, ours.running_var), (theirs.running_mean, theirs.running_var), strict=True
    ):
        assert mine is not None
        assert exact is not None
        assert mine.dtype == torch.float32
        assert torch.allclose(mine.double(), exact, rtol=1e-5)
    theirs.eval()
    ours.eval()
    assert torch.allclose(ours(input).double(), theirs(input.double()), rtol=2.0**-6, atol=2.0**-6)
    ours.double()
    assert ours.running_mean is not None
    assert ours.running_mean.dtype == torch.float64


def test_padding_leaves_statistics_and_gradients_alone_even_where_it_is_infinite(group: None) -> None:
    padding = Padding()
    _, ours = pair(padding)
    before = [buffer.clone() for buffer in ours.buffers()]
    padding.now = True
    _, found = gradients(ours, torch.full_like(images(), torch.inf))
    assert all(not bool(gradient.any()) for gradient in found)
    running = [ours.running_mean, ours.running_var]
    assert all(value is not None and bool(value.isfinite().all()) for value in running)
    padding.now = False
    plain = nn.BatchNorm2d(3)
    before = [buffer.clone() for buffer in plain.buffers()]
    with statistics_kept(plain):
        plain(images())
    assert all(torch.equal(a, b) for a, b in zip(before, plain.buffers(), strict=True))


class Activated(nn.BatchNorm2d):
    """As timm 1.0's BatchNormAct2d (timm/layers/norm_act.py): dropout and activation in the norm's own forward."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.drop = nn.Identity()
        self.act = nn.ReLU()

    def forward(self, input: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(input)))


class Shifted(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


def test_an_activation_inside_the_norm_is_kept_and_another_forward_is_refused(group: None) -> None:
    theirs = Activated(3)
    ours = with_synchronized_norms(nn.Sequential(Activated(3)), Padding())
    assert isinstance(ours[0], GlobalBatchNorm)
    assert torch.allclose(theirs(images()), ours(images()), atol=1e-5)
    with pytest.raises(ValueError, match=r"sync_batchnorm: 0 is a Shifted, .* trainer\.sync_batchnorm=false"):
        with_synchronized_norms(nn.Sequential(Shifted(3)), Padding())
