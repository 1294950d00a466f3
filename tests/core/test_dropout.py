"""Dropout by sample: the same units whoever computes them, and as random as torch's."""

import pytest
import torch
from runs import TINY, Freeze, weights
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from leyden.trainer.core.keyed.dropout import KeyedDropout, SampleKeys
from leyden.trainer.core.keyed.modules import with_keyed_layers
from leyden.trainer.entrypoints.start import start


def keys(count: int) -> Tensor:
    return torch.randint(2**62, (count,), generator=torch.Generator().manual_seed(0))


def layer(p: float, sample_keys: SampleKeys, shared: int = 0, number: int = 7) -> KeyedDropout:
    return KeyedDropout(p, number, shared, sample_keys)


def test_it_drops_the_asked_share_and_scales_the_rest() -> None:
    sample_keys = SampleKeys()
    sample_keys.set(keys(200))
    dropped = layer(0.3, sample_keys)(torch.ones(200, 500))
    assert (dropped == 0).double().mean() == pytest.approx(0.3, abs=0.01)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.7])
    gone = (dropped == 0).double() - 0.3
    assert (gone.mean(0).abs() < 0.16).all(), "every unit alike"
    assert (gone.mean(1).abs() < 0.11).all(), "every sample alike"
    together = gone @ gone.T / 500
    assert (together - together.diag().diag()).abs().max() < 0.06, "samples know nothing of each other"


def test_any_part_of_samples_and_units_drops_what_the_whole_does() -> None:
    sample_keys = SampleKeys()
    sample_keys.set(keys(6))
    images = torch.ones(6, 4, 8, 9)
    whole = layer(0.5, sample_keys)(images)
    sample_keys.set(keys(6)[2:5])
    part = layer(0.5, sample_keys)
    part.region = [(1, 4), (3, 8), (0, 9)]
    assert torch.equal(part(images[2:5, 1:3, 3:7, :5]), whole[2:5, 1:3, 3:7, :5])


def test_calls_layers_and_batches_draw_anew_and_samples_again() -> None:
    sample_keys = SampleKeys()
    sample_keys.set(keys(20))
    x = torch.ones(20, 40)
    one = layer(0.5, sample_keys)
    first, second = one(x), one(x)
    assert not torch.equal(first, second)
    assert not torch.equal(first, layer(0.5, sample_keys, number=8)(x))
    sample_keys.set(keys(20))
    assert torch.equal(one(x), first)
    sample_keys.set(keys(20).flip(0))
    assert torch.equal(one(x), first.flip(0))


def test_whole_channels_and_the_ends_of_p() -> None:
    sample_keys = SampleKeys()
    sample_keys.set(keys(5))
    images = torch.ones(5, 16, 3, 3)
    channels = layer(0.5, sample_keys, shared=2)(images).flatten(2)
    assert ((channels == 0).all(2) | (channels == 2).all(2)).all()
    assert 0 < (channels == 0).double().mean() < 1
    assert not layer(1.0, sample_keys)(images).any()
    assert torch.equal(layer(0.0, sample_keys)(images), images)


def test_without_keys_it_is_torchs_own() -> None:
    x = torch.ones(4, 50)
    torch.manual_seed(3)
    expected = nn.Dropout(0.5)(x)
    torch.manual_seed(3)
    assert torch.equal(layer(0.5, SampleKeys())(x), expected)


def test_every_dropout_of_a_task_is_replaced_and_keeps_its_mode() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Sequential(nn.Dropout2d(0.4), nn.ReLU()))
    net[2].eval()
    with_keyed_layers(net, SampleKeys())
    inner = net.get_submodule("2.0")
    assert isinstance(net[1], KeyedDropout)
    assert isinstance(inner, KeyedDropout)
    assert (net[1].p, inner.p, inner.shared) == (0.2, 0.4, 2)
    assert net[1].layer != inner.layer
    assert net[1].training
    assert not inner.training
    x = torch.ones(2, 3, 2, 2)
    assert torch.equal(inner(x), x)


def test_the_mask_of_a_unit_is_the_one_that_the_definition_gives() -> None:
    """Computed by Python's integers: another device, dtype or version of torch must not change a resumed run."""
    word = 2**32 - 1

    def mixed(bits: int) -> int:
        bits ^= bits >> 16
        bits = bits * 0x7FEB352D & word
        bits ^= bits >> 15
        bits = bits * 0x846CA68B & word
        return bits ^ bits >> 16

    def drops(key: int, unit: int, p: float) -> bool:
        draw = (mixed(unit) ^ key) * 0x7FEB352D & word
        draw = (draw ^ draw >> 15) * 0x846CA68B & word
        return (draw ^ 1 << 31) < int(p * 2**32)

    sample_keys = SampleKeys()
    one = layer(0.3, sample_keys)
    sample_keys.set(keys(3))
    first = one.words
    assert first is not None
    for call in range(2):
        own = [int(key) & word for key in first]
        if call:
            own = [mixed(key + 0x9E3779B9 & word) for key in own]
        expected = [[drops(key, unit, 0.3) for unit in range(100)] for key in own]
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            one.calls = call
            assert ((one(torch.ones(3, 100, dtype=dtype)) == 0) == torch.tensor(expected)).all()


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("sequence", ["random", "consecutive"])
def test_masks_are_as_independent_as_coin_tosses(p: float, sequence: str) -> None:
    """Pearson's chi-square of counts, and correlations of neighbours, as z-scores: 4 is passed by 1 in 16,000."""
    samples, units = 512, 4096
    sample_keys = SampleKeys()
    one, other = layer(p, sample_keys), layer(p, sample_keys, number=8)
    sample_keys.set(keys(samples) if sequence == "random" else torch.arange(samples))
    ones = torch.ones(samples, units)
    masks = [((one(ones) == 0).double() - p) / (p * (1 - p)) ** 0.5 for _ in range(2)]
    masks.append(((other(ones) == 0).double() - p) / (p * (1 - p)) ** 0.5)
    mask, again, elsewhere = masks

    def z_of_counts(sums: Tensor, tosses: int) -> float:
        chi_square = float((sums**2 / tosses).sum())
        return (chi_square - len(sums)) / (2 * len(sums)) ** 0.5

    def z_of_correlation(a: Tensor, b: Tensor) -> float:
        return float((a * b).sum() / a.numel() ** 0.5)

    scores = {
        "all": float(mask.sum() / mask.numel() ** 0.5),
        "units": z_of_counts(mask.sum(0), samples),
        "samples": z_of_counts(mask.sum(1), units),
        "calls": z_of_correlation(mask, again),
        "layers": z_of_correlation(mask, elsewhere),
    }
    for apart in (1, 2, 3, 16, 64, 256):
        scores[f"units {apart} apart"] = z_of_correlation(mask[:, apart:], mask[:, :-apart])
        scores[f"samples {apart} apart"] = z_of_correlation(mask[apart:], mask[:-apart])
    assert {name: z for name, z in scores.items() if abs(z) > 4} == {}


@pytest.mark.slow
def test_a_compiled_layer_is_one_graph_for_all_steps_and_drops_the_same_units() -> None:
    def block() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(8, 8), nn.Dropout(0.5), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.2))
        )

    sample_keys, counter = SampleKeys(), CompileCounterWithBackend("aot_eager")
    eager = with_keyed_layers(block(), sample_keys)
    compiled = torch.compile(with_keyed_layers(block(), sample_keys), backend=counter)
    x = torch.randn(6, 3, 8)
    for step in range(4):
        sample_keys.set(keys(6) + step)
        one = compiled(x)
        sample_keys.set(keys(6) + step)
        assert torch.allclose(one, eager(x), atol=1e-6)
    assert counter.frame_count == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_activation_checkpointing_computes_again_drops_the_same_units(reentrant: bool) -> None:
    torch.manual_seed(0)
    sample_keys = SampleKeys()
    net = with_keyed_layers(nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Tanh(), nn.Linear(64, 1)), sample_keys)
    x = torch.randn(6, 4, requires_grad=True)
    gradients = []
    for checkpointed in (False, True):
        net.zero_grad()
        sample_keys.set(keys(6))
        y = checkpoint(net, x, use_reentrant=reentrant) if checkpointed else net(x)
        assert isinstance(y, Tensor)
        y.sum().backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))

    def twice(x: Tensor) -> Tensor:
        return net[1](net[1](x))

    sample_keys.set(keys(6))
    y = checkpoint(twice, x, use_reentrant=reentrant)
    assert isinstance(y, Tensor)
    with pytest.raises(RuntimeError, match="called 2 times for a batch"):
        y.sum().backward()


def test_torchs_own_dropout_on_request(freeze: Freeze) -> None:
    options = [*TINY, "model.dropout=0.5", "trainer.enable_progress_bar=false"]
    runs = [freeze(name, *options, "trainer.exact_dropout=false") for name in ("one", "again")]
    exact = freeze("exact", *options)
    for run_dir in (*runs, exact):
        assert start(run_dir) == 0
    one, again, other = map(weights, (*runs, exact))
    assert all(torch.equal(value, again[name]) for name, value in one.items())
    assert not torch.equal(next(iter(one.values())), next(iter(other.values())))
    assert "(Dropout)" in (runs[0] / "run.log").read_text(), "it draws from the process's generator"
    assert "(Dropout)" not in (exact / "run.log").read_text()
