"""CropFlip: a pure function of image and key, with every outcome as likely as it should be."""

from collections import Counter

import pytest
import torch
from torch.nn.functional import pad

from leyden.datasets.augment import CropFlip


def picture(height: int = 7, width: int = 9) -> torch.Tensor:
    """Every pixel different and none zero."""
    return torch.arange(1, 3 * height * width + 1, dtype=torch.uint8).view(3, height, width)


def crops(image: torch.Tensor, padding: int, flips: bool) -> dict[bytes, tuple[int, int, bool]]:
    """All images that may come out, by the slow way: mirror, pad, cut."""
    height, width = image.shape[-2:]
    found: dict[bytes, tuple[int, int, bool]] = {}
    for flip in (False, True)[: 1 + flips]:
        padded = pad(image.flip(2) if flip else image, (padding,) * 4)
        for top in range(2 * padding + 1):
            for left in range(2 * padding + 1):
                window = padded[:, top : top + height, left : left + width]
                found[window.contiguous().numpy().tobytes()] = (top, left, flip)
    return found


def test_every_crop_and_mirror_is_as_likely_as_the_others() -> None:
    image, augment = picture(), CropFlip(padding=2, flip=True)
    expected = crops(image, 2, flips=True)
    assert len(expected) == 50
    draws = 10_000
    seen = Counter(expected[augment(image, key).numpy().tobytes()] for key in range(draws))  # KeyError: not a crop
    assert len(seen) == 50
    # 200 each are expected, give or take 14: five deviations.
    assert min(seen.values()) > 130
    assert max(seen.values()) < 270
    flipped = sum(count for (_, _, flip), count in seen.items() if flip)
    assert abs(flipped - draws / 2) < 250


def test_same_key_same_image_and_the_input_is_left_alone() -> None:
    image, augment = picture(), CropFlip()
    before = image.clone()
    torch.manual_seed(1)
    one = [augment(image, key) for key in (0, 5, 2**63 - 1, 5)]
    torch.manual_seed(2)
    two = [augment(image, key) for key in (0, 5, 2**63 - 1, 5)]
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert torch.equal(one[1], one[3])
    assert torch.equal(image, before)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_shape_and_dtype_stay(dtype: torch.dtype) -> None:
    image = picture().to(dtype)
    for key in range(50):
        out = CropFlip(padding=3)(image, key)
        assert out.shape == image.shape
        assert out.dtype == dtype
        assert torch.equal(out.to(torch.uint8), CropFlip(padding=3)(picture(), key))


def test_switches() -> None:
    image = picture()
    assert all(torch.equal(CropFlip(padding=0, flip=False)(image, key), image) for key in range(20))
    mirrored = Counter(torch.equal(CropFlip(padding=0)(image, key), image.flip(2)) for key in range(1000))
    assert abs(mirrored[True] - 500) < 80
    straight = crops(image, 4, flips=False)
    assert all(CropFlip(flip=False)(image, key).numpy().tobytes() in straight for key in range(300))


def test_padding_may_be_larger_than_the_image() -> None:
    image = picture(3, 3)
    expected = crops(image, 5, flips=True)
    assert all(CropFlip(padding=5)(image, key).numpy().tobytes() in expected for key in range(500))


def test_negative_padding_is_refused() -> None:
    with pytest.raises(ValueError, match="padding=-1"):
        CropFlip(padding=-1)
