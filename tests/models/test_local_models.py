"""Untied local filters and what is made of them: against plain torch, in tiles, and at the published sizes."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leyden.datasets.digits import Digits
from leyden.models import local_kernels
from leyden.models.conv_local import ConvLocal
from leyden.models.cots_autoencoder import COTSAutoencoder, Stage
from leyden.models.local_filters import (
    L2Pool,
    LocalContrastNorm,
    LocalFilters,
    SumOverPositions,
    TransposedFilters,
    Window,
)
from leyden.models.local_net import LocalNet
from leyden.trainer.components.tasks.reconstruction import Reconstruction
from leyden.trainer.strategies.spatial.tiling import materialize


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def used(layer: LocalFilters) -> Tensor:
    """(positions, maps, inputs), as the layer uses them."""
    weight = layer.weight.flatten(0, 1)
    return weight / weight.norm(dim=-1, keepdim=True) if layer.unit_norm else weight


def plain(layer: LocalFilters, x: Tensor) -> Tensor:
    """The same by unfolding everything at once."""
    patches = F.unfold(x, layer.receptive_field.size, stride=layer.receptive_field.stride)
    y = torch.einsum("pmi,bip->bmp", used(layer), patches)
    return y.unflatten(2, layer.output_shape[1:])


def plain_transposed(layer: LocalFilters, y: Tensor) -> Tensor:
    patches = torch.einsum("pmi,bmp->bip", used(layer), y.flatten(2))
    return F.fold(patches, layer.input_shape[1:], layer.receptive_field.size, stride=layer.receptive_field.stride)


def gradients(output: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = output(x, weight)
    return [y, *torch.autograd.grad((y * double(*y.shape)).sum(), [x, weight])]


@pytest.mark.parametrize("unit_norm", [False, True])
@pytest.mark.parametrize("block", [1, 2**24])
@pytest.mark.parametrize(("shape", "size", "stride"), [((2, 9, 11), 3, 1), ((3, 10, 8), 4, 2), ((1, 5, 5), 5, 1)])
def test_filters_are_what_unfolding_gives(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], size: int, stride: int, block: int, unit_norm: bool
) -> None:
    monkeypatch.setattr(local_kernels, "_BLOCK_VALUES", block)
    layer = LocalFilters(shape, 3, size, stride, seed=1, unit_norm=unit_norm).double()
    x, y = double(4, *shape), double(4, *layer.output_shape)
    ours = gradients(lambda x, _: layer(x), x, layer.weight)
    theirs = gradients(lambda x, _: plain(layer, x), x, layer.weight)
    ours += gradients(lambda y, w: layer.transposed_at(y, w), y, layer.weight)
    theirs += gradients(lambda y, _: plain_transposed(layer, y), y, layer.weight)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_transposed_is_the_adjoint_times_the_scale() -> None:
    layer = LocalFilters((2, 9, 8), 3, 4, 3).double()  # windows leave the last column and two rows out
    back = TransposedFilters(layer).double()
    x, y = double(5, 2, 9, 8), double(5, 3, 2, 2)
    assert back(y).shape == x.shape
    torch.testing.assert_close((layer(x) * y).sum() * back.scale, (x * back(y)).sum())
    assert back.scale.item() == pytest.approx(2 / 5)
    assert [name for name, _ in back.named_parameters()] == ["scale"]


def test_the_scale_steps_on_the_mean() -> None:
    layer = LocalFilters((2, 6, 6), 3, 3).double()
    back = TransposedFilters(layer).double()
    y = double(2, 3, 4, 4)
    (gradient,) = torch.autograd.grad(back(y).sum(), back.scale)
    torch.testing.assert_close(gradient, (back(y) / back.scale).sum() / (2 * 6 * 6))


def test_pooling() -> None:
    x = double(2, 3, 7, 6)
    pool = L2Pool((3, 7, 6), 3, 2, eps=0.01)
    expected = (x.square().unfold(2, 3, 2).unfold(3, 3, 2).sum((4, 5)) + 0.01).sqrt()
    torch.testing.assert_close(pool(x), expected)
    assert pool.output_shape == (3, 3, 2)
    zero = torch.zeros(1, 3, 7, 6, requires_grad=True)
    pool(zero).sum().backward()
    assert zero.grad is not None
    assert torch.equal(zero.grad, torch.zeros_like(zero))


def test_local_contrast_normalization_position_by_position() -> None:
    x, size, floor = double(2, 3, 6, 7) * 0.05, 3, 0.04
    norm = LocalContrastNorm((3, 6, 7), size, floor)
    reach = torch.arange(-1, 2, dtype=torch.float64)
    gauss = torch.exp(-0.5 * (reach / 0.75) ** 2)
    window = gauss[:, None] * gauss[None, :]

    def around(values: Tensor, row: int, col: int) -> Tensor:
        total, weight = torch.zeros(2, dtype=torch.float64), 0.0
        for u in range(-1, 2):
            for v in range(-1, 2):
                if 0 <= row + u < 6 and 0 <= col + v < 7:
                    g = float(window[u + 1, v + 1])
                    total += g * values[:, :, row + u, col + v].sum(1)
                    weight += 3 * g
        return total / weight

    everywhere = [(row, col) for row in range(6) for col in range(7)]
    centered, expected = x.clone(), x.clone()
    for row, col in everywhere:
        centered[:, :, row, col] = x[:, :, row, col] - around(x, row, col)[:, None]
    divided = 0
    for row, col in everywhere:
        deviation = around(centered.square(), row, col).sqrt()
        divided += int((deviation > floor).sum())
        expected[:, :, row, col] = centered[:, :, row, col] / deviation.clamp_min(floor)[:, None]
    assert 0 < divided < 2 * 6 * 7  # both cases occur
    torch.testing.assert_close(norm(x), expected)
    assert norm(torch.full((1, 3, 6, 7), 0.7)).abs().max() < 1e-4  # a plain surface has no contrast
    assert torch.autograd.gradcheck(norm, (x.requires_grad_(),))


@pytest.mark.parametrize(
    "layer",
    [
        LocalFilters((2, 11, 9), 3, 4, seed=3, layer=1, unit_norm=True),
        LocalFilters((1, 12, 12), 2, 3, 2),
        L2Pool((2, 11, 9), 3, 2),
        LocalContrastNorm((2, 11, 9), 5),
        LocalContrastNorm((2, 11, 9), 1),
    ],
    ids=["filters", "strided filters", "pooling", "normalization", "normalization at a point"],
)
def test_a_tile_is_a_part_of_the_whole(layer: Any) -> None:
    layer = layer.double()
    x = double(3, *layer.input_shape)
    whole = layer(x)
    _, height, width = layer.output_shape
    for rows in (range(2), range(2, height), range(height - 1, height)):
        for cols in (range(1), range(1, width)):
            tile = layer.tile(rows, cols)
            down = layer.receptive_field.inputs(rows, x.shape[2])
            across = layer.receptive_field.inputs(cols, x.shape[3])
            part = tile(x[:, :, down.start : down.stop, across.start : across.stop])
            expected = whole[:, :, rows.start : rows.stop, cols.start : cols.stop]
            torch.testing.assert_close(part, expected, rtol=1e-12, atol=1e-13)


def test_windows_at_the_border() -> None:
    assert Window(5, 2).inputs(range(1, 3), 100) == range(2, 9)
    assert Window(9, 1, 4).inputs(range(3), 6) == range(6)


def test_weights_are_drawn_by_position() -> None:
    settings: dict[str, Any] = {"input_shape": (3, 9, 9), "maps": 4, "size": 4, "seed": 7, "layer": 2}
    whole = LocalFilters(**settings)
    with torch.device("meta"):
        unmade = LocalFilters(**settings)
    assert unmade.weight.is_meta
    for source in (whole, unmade, unmade.double()):
        tile = source.tile(range(2, 5), range(1, 6))
        assert torch.equal(tile.weight, whole.weight[2:5, 1:6].to(tile.weight.dtype))
    assert unmade.tile(range(2, 5), range(1, 6)).weight.dtype == torch.float64
    flat = whole.weight.detach().flatten(0, 1).flatten(1)
    assert len(torch.unique(flat, dim=0)) == 36  # every position another stream
    assert float(flat.std()) == pytest.approx(48**-0.5, rel=0.05)
    for other in ({"seed": 8}, {"layer": 3}):
        assert not torch.equal(LocalFilters(**{**settings, **other}).weight, whole.weight)


@pytest.mark.parametrize("build", [LocalNet, COTSAutoencoder])
def test_built_without_memory_and_set_later(build: Any) -> None:
    options = {"image_shape": (1, 16, 16), "seed": 5, "rf": 4, "lcn": 3, "pool": 3}
    if build is LocalNet:
        options |= {"classes": 7, "batch_norm": True}
    whole = build(**options)
    with torch.device("meta"):
        later = build(**options)
    for name, layer in list(later.named_modules()):
        if isinstance(layer, LocalFilters):
            parent, _, own = name.rpartition(".")
            setattr(later.get_submodule(parent), own, layer.tile(layer.rows, layer.cols))
    materialize(later, torch.device("cpu"))
    assert whole.state_dict().keys() == later.state_dict().keys()
    for name, value in whole.state_dict().items():
        assert torch.equal(value, later.state_dict()[name]), name


@pytest.mark.parametrize(("maps", "millions"), [(8, 1217), (10, 1820), (13, 2949), (26, 10949)])
def test_cots_has_the_published_sizes(maps: int, millions: int) -> None:
    with torch.device("meta"):
        model = COTSAutoencoder((3, 200, 200), maps=maps)
    of_stages = [sum(p.numel() for p in stage.parameters()) for stage in model.stages]
    positions, inputs = [183**2, 162**2, 141**2], [3 * 18**2, maps * 18**2, maps * 18**2]
    assert of_stages == [p * maps * i + 1 for p, i in zip(positions, inputs, strict=True)]
    assert round(sum(of_stages) / 1e6) == millions
    if maps == 8:
        assert of_stages == [260_410_465, 544_195_585, 412_252_417]
        assert sum(of_stages) == 1_216_858_467
    shapes = [stage.norm.output_shape for stage in model.stages if isinstance(stage, Stage)]
    assert shapes == [(maps, 179, 179), (maps, 158, 158), (maps, 137, 137)]


def test_the_cost_is_the_papers() -> None:
    model = COTSAutoencoder((2, 12, 12), seed=1, maps=3, stages=2, rf=4, pool=3, lcn=3).double()
    first, second = model.stages
    assert isinstance(first, Stage)
    assert isinstance(second, Stage)
    images = double(5, 2, 12, 12)
    x = first(images)
    code = plain(second.filters, x)
    error = (second.decoder.scale * plain_transposed(second.filters, code) - x).square().sum((1, 2, 3))
    sparsity = (F.avg_pool2d(code.square(), 3, 1) * 9 + 1e-6).sqrt().sum((1, 2, 3))
    sums = model(images, 1)
    torch.testing.assert_close(sums, torch.stack([error, sparsity, x.square().sum((1, 2, 3))], 1))
    assert model(images).shape == (5, 3, 2, 2)
    sums.sum().backward()
    assert all(p.grad is None for p in first.parameters())
    assert all(p.grad is not None for p in second.parameters())
    lengths = used(second.filters).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


def test_sums_are_exact_enough_in_half_precision() -> None:
    ones = torch.ones(1, 1, 100, 100, dtype=torch.bfloat16)
    assert SumOverPositions()(ones, ones).tolist() == [[10_000.0, 10_000.0]]


@pytest.mark.parametrize("model", ["local_net", "cots_autoencoder"])
def test_autocast(model: str) -> None:
    """bf16-mixed: products in bfloat16, weights and gradients in float32, and near what float32 gives."""
    net: nn.Module = LocalNet(4, (1, 12, 12), rf=3) if model == "local_net" else COTSAutoencoder(
        (1, 12, 12), maps=3, stages=1, rf=4, pool=3, lcn=3)  # fmt: skip
    images = torch.randn(8, 1, 12, 12, generator=torch.Generator().manual_seed(0))

    def output() -> Tensor:
        return net(images) if model == "local_net" else net(images, 0)

    exact = torch.autograd.grad(output().float().square().mean(), list(net.parameters()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer = next(m for m in net.modules() if isinstance(m, LocalFilters))
        assert layer(images).dtype == torch.bfloat16
        mixed = torch.autograd.grad(output().float().square().mean(), list(net.parameters()))
    for one, other in zip(mixed, exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() <= 0.05 * other.norm()


def test_an_autoencoder_learns() -> None:
    """Each stage explains more of its input than before; filters of the first are no longer noise."""
    data = Digits("train", image_size=16)
    images = torch.as_tensor(data.images).float().div(255).sub(data.mean[0]).div(data.std[0])[:512]
    model = COTSAutoencoder((1, 16, 16), maps=4, stages=2, rf=5, pool=3, lcn=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for stage in range(2):
        unexplained: list[float] = []
        for _ in range(6):
            for batch in images.split(64):
                optimizer.zero_grad()
                error, sparsity, energy = model(batch, stage).mean(0).unbind()
                (error + 0.1 * sparsity).backward()
                optimizer.step()
                unexplained.append((error / energy).item())
        assert unexplained[-1] < 0.75 * unexplained[0], (stage, unexplained)


def test_local_net_learns_digits() -> None:
    data, test = Digits("train", image_size=16), Digits("test", image_size=16)

    def scaled(images: Any) -> Tensor:
        return torch.as_tensor(images).float().div(255).sub(data.mean[0]).div(data.std[0])

    model = LocalNet(10, (1, 16, 16), maps=[8], rf=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    images, labels = scaled(data.images), torch.tensor(data.labels)
    for _ in range(4):
        for part in torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
    with torch.no_grad():
        right = model.eval()(scaled(test.images)).argmax(1) == torch.tensor(test.labels)
    assert right.float().mean() > 0.9


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: LocalNet(10, (1, 8, 8), rf=9), r"stage 0, on a map of \(1, 8, 8\): filters: a window of 9"),
        (lambda: LocalNet(10, (1, 8, 8), maps=[2, 2], rf=5), r"stage 1, on a map of \(2, 2, 2\)"),
        (lambda: LocalNet(10, (1, 8, 8), lcn=4), "lcn=4: .* odd"),
        (lambda: LocalNet(10, (1, 8, 8), dropout=1.0), "dropout=1.0"),
        (lambda: LocalNet(10, (1, 8, 8), maps=[]), "at least one stage"),
        (lambda: COTSAutoencoder((3, 32, 32)), r"stage 1, on a map of \(8, 11, 11\): filters: a window of 18"),
        (lambda: COTSAutoencoder((3, 32, 32), stages=0), "stages=0"),
        (lambda: Reconstruction(nn.Linear(1, 1)), "Linear has none"),
        (lambda: Reconstruction(COTSAutoencoder((1, 32, 32), stages=1), stage=1), "the model's stages are 0 to 0"),
        (lambda: Reconstruction(COTSAutoencoder((1, 32, 32), stages=1), epochs_per_stage=0), "at least 1"),
    ],
)
def test_refusals(build: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build()


@pytest.mark.parametrize(
    ("settings", "stages"),
    [
        ({}, [0, 0, 1, 1, 2, 2, 2]),
        ({"epochs_per_stage": 1}, [0, 1, 2, 2, 2, 2, 2]),
        ({"stage": 1}, [1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_stages_follow_each_other(settings: dict[str, int], stages: list[int]) -> None:
    with torch.device("meta"):
        task = Reconstruction(COTSAutoencoder((1, 100, 100)), **settings)
    trainer: Any = SimpleNamespace(max_epochs=6, current_epoch=0)
    seen: list[int] = []
    for epoch in range(7):
        trainer.current_epoch = epoch
        task._trainer = trainer
        seen.append(task.current_stage())
    assert seen == stages


def test_convolutions_untied_filters_and_a_head() -> None:
    model = ConvLocal(10, (1, 32, 32))
    sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    assert sizes == {"features": 13_248, "local": 331_776, "classifier": 1_190_922}
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 10)
    same, other = ConvLocal(10, (1, 32, 32)), ConvLocal(10, (1, 32, 32), seed=1)
    for one, two, three in zip(*(m.state_dict().items() for m in (model, same, other)), strict=True):
        assert torch.equal(one[1], two[1])
        assert "weight" not in one[0] or not torch.equal(one[1], three[1])
    assert ConvLocal(7, (3, 20, 14), filters=[4], maps=2, hidden=[])(torch.randn(1, 3, 20, 14)).shape == (1, 7)
    with pytest.raises(ValueError, match="at least 12 x 12 pixels, these have 12 x 11"):
        ConvLocal(10, (1, 12, 11))
    with pytest.raises(ValueError, match="maps=0: every layer needs"):
        ConvLocal(10, (1, 32, 32), maps=0)
    with pytest.raises(ValueError, match="filters: a window of 9"):
        ConvLocal(10, (1, 32, 32), rf=9)
