"""Dropout by sample: the same units whoever computes them, and as random as torch's."""

import pytest
import torch
from torch import Tensor, nn

from leyden.trainer.core.keyed_dropout import KeyedDropout, SampleKeys
from leyden.trainer.core.keyed_modules import keyed


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
    keyed(net, SampleKeys(), compiled=False)
    inner = net.get_submodule("2.0")
    assert isinstance(net[1], KeyedDropout)
    assert isinstance(inner, KeyedDropout)
    assert (net[1].p, inner.p, inner.shared) == (0.2, 0.4, 2)
    assert net[1].layer != inner.layer
    assert net[1].training
    assert not inner.training
    x = torch.ones(2, 3, 2, 2)
    assert torch.equal(inner(x), x)
