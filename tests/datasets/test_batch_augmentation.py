"""Each change of a batch against a plain float64 reference, one image and one pixel at a time."""

import colorsys
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from leyden.datasets.augmentation import randaugment
from leyden.datasets.augmentation.color import ColorCast, ColorJitter, RandomGrayscale, Vignette
from leyden.datasets.augmentation.compose import Compose
from leyden.datasets.augmentation.draws import hashed, salted, uniform
from leyden.datasets.augmentation.erasing import RandomErasing
from leyden.datasets.augmentation.flips import RandomFlip, RandomShift
from leyden.datasets.augmentation.mixing import Mix, beta_powers, neighbours
from leyden.datasets.augmentation.randaugment import OPERATIONS, RandAugment
from leyden.datasets.augmentation.warps import LensDistortion, Rotation
from leyden.datasets.hashing import splitmix64
from leyden.trainer.core.protocols import BatchDraws

COUNT, HEIGHT, WIDTH, CLASSES = 12, 13, 17, 7
MEAN = (0.3, 0.5, 0.6)
Pixels = np.ndarray[Any, np.dtype[np.float64]]


def drawn(count: int = COUNT, epoch: int = 0, views: int = 1, first: int = 0) -> BatchDraws:
    keys = torch.tensor([splitmix64(first + number) >> 1 for number in range(count)])
    mean = torch.tensor(MEAN).view(1, -1, 1, 1)
    return BatchDraws(keys, hashed(keys) & (2**63 - 1), epoch, views, CLASSES, mean)


def pictures(count: int = COUNT, height: int = HEIGHT, width: int = WIDTH) -> torch.Tensor:
    levels = torch.randint(256, (count, 3, height, width), generator=torch.Generator().manual_seed(0))
    return levels.float() / 255


def labels(count: int = COUNT) -> torch.Tensor:
    return torch.arange(count) % CLASSES


def numbers(draws: BatchDraws, count: int) -> list[list[float]]:
    """The numbers from 0 to 1 of each image, by integer arithmetic."""
    mask = 2**64 - 1
    return [
        [(splitmix64((splitmix64(key) + number) & mask) >> 40) / 2**24 for number in range(1, count + 1)]
        for key in draws.keys.tolist()
    ]


def changed(change: Any, images: torch.Tensor, draws: BatchDraws | None = None) -> Pixels:
    before = images.clone()
    result, same = change.augment_batch(images, labels(len(images)), drawn(len(images)) if draws is None else draws)
    assert torch.equal(same, labels(len(images)))
    assert torch.equal(images, before), "the batch itself is left alone"
    assert result.dtype is torch.float32
    return result.double().numpy()


def assert_close(found: Pixels, expected: Pixels, tolerance: float = 2e-5) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance


def test_numbers_are_hashes_of_the_keys() -> None:
    draws = drawn(300)
    assert hashed(draws.keys).tolist() == [
        word - 2**64 if (word := splitmix64(key)) >= 2**63 else word for key in draws.keys.tolist()
    ]
    found = uniform(draws.keys, 5)
    assert found.double().numpy().tolist() == numbers(draws, 5)
    assert found.min() >= 0
    assert found.max() < 1
    counts = torch.histc(found, 10, 0, 1)
    assert counts.min() > 100, "150 each are expected, give or take 12"
    correlation = np.corrcoef(found.numpy().T) - np.eye(5)
    assert np.abs(correlation).max() < 0.25


# --- colour


def lumas(image: Pixels) -> Pixels:
    return 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]


def jittered(image: Pixels, given: list[float], jitter: ColorJitter) -> Pixels:
    def blend(one: Pixels, other: Any, draw: float, value: float) -> Pixels:
        low = max(0.0, 1 - value)
        factor = low + draw * (1 + value - low)
        return np.clip(factor * one + (1 - factor) * other, 0, 1)

    image = blend(image, 0.0, given[1], jitter.brightness)
    image = blend(image, lumas(image).mean(), given[2], jitter.contrast)
    image = blend(image, lumas(image)[None], given[3], jitter.saturation)
    turn = (2 * given[4] - 1) * jitter.hue
    result = np.empty_like(image)
    for row in range(image.shape[1]):
        for column in range(image.shape[2]):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[:, row, column])
            result[:, row, column] = colorsys.hsv_to_rgb((hue + turn) % 1.0, saturation, value)
    return result


def test_color_jitter() -> None:
    images, draws = pictures(), drawn()
    images[1] = 0.5  # grey, without a hue
    jitter = ColorJitter(0.4, 0.5, 0.6, 0.3, p=0.7)
    expected = [
        jittered(image, given, jitter) if given[0] < 0.7 else image
        for image, given in zip(images.double().numpy(), numbers(draws, 5), strict=True)
    ]
    assert 0 < sum(given[0] < 0.7 for given in numbers(draws, 5)) < COUNT
    assert_close(changed(jitter, images), np.stack(expected))


def test_color_jitter_of_grey_images_changes_brightness_and_contrast() -> None:
    images = pictures()[:, :1]
    found = changed(ColorJitter(0.4, 0.0, 0.9, 0.5), images)
    factors = [0.6 + 0.8 * given[1] for given in numbers(drawn(), 5)]
    assert_close(found, np.stack([np.clip(i * f, 0, 1) for i, f in zip(images.double().numpy(), factors, strict=True)]))


def test_grayscale() -> None:
    images, draws = pictures(), drawn()
    chosen = [given[0] < 0.4 for given in numbers(draws, 1)]
    assert 0 < sum(chosen) < COUNT
    expected = [
        np.broadcast_to(lumas(image), image.shape) if is_chosen else image
        for image, is_chosen in zip(images.double().numpy(), chosen, strict=True)
    ]
    assert_close(changed(RandomGrayscale(0.4), images), np.stack(expected))
    alone = images[:, :1]
    assert_close(changed(RandomGrayscale(1.0), alone), alone.double().numpy())


def test_color_cast_changes_the_drawn_channels_by_whole_levels() -> None:
    images, draws = pictures(400), drawn(400)
    expected = images.double().numpy().copy()
    seen = set()
    for image, given in zip(expected, numbers(draws, 6), strict=True):
        for channel in range(3):
            if given[channel] < 0.5:
                level = math.floor(given[3 + channel] * 41) - 20
                seen.add(level)
                image[channel] += level / 255
    assert seen == set(range(-20, 21))
    assert_close(changed(ColorCast(20), images, draws), expected.clip(0, 1))


def test_vignette() -> None:
    images, draws = pictures(), drawn()
    expected = images.double().numpy().copy()
    for image, given in zip(expected, numbers(draws, 3), strict=True):
        start = 0.2 + 0.8 * given[1]
        reduction = 0.9 * given[2] if given[0] < 0.5 else 0.0
        for row in range(HEIGHT):
            for column in range(WIDTH):
                down = (row + 0.5 - HEIGHT / 2) / (HEIGHT / 2)
                right = (column + 0.5 - WIDTH / 2) / (WIDTH / 2)
                r = math.sqrt((down**2 + right**2) / 2)
                image[:, row, column] *= 1 - reduction * max(0.0, (r - start) / (1 - start)) ** 2
    assert_close(changed(Vignette(0.2, 0.9, 0.5), images), expected)
    white = changed(Vignette(0.0, 1.0, 1.0), torch.ones(50, 3, HEIGHT, WIDTH), drawn(50))
    middle = white[:, 0, HEIGHT // 2, WIDTH // 2 :]
    assert (np.diff(middle, axis=1) <= 0).all(), "darker with the distance"


# --- geometry


def sampled_at(image: Pixels, row: float, column: float) -> Pixels:
    """Bilinear interpolation at a place; outside is the mean colour."""
    height, width = image.shape[1:]
    top, left = math.floor(row), math.floor(column)
    result = np.zeros(3)
    for y, x in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        weight = (1 - abs(row - y)) * (1 - abs(column - x))
        result += weight * (image[:, y, x] if 0 <= y < height and 0 <= x < width else np.array(MEAN))
    return result


def warped(image: Pixels, source: Callable[[float, float], tuple[float, float]]) -> Pixels:
    """`source` maps distances from the centre, down and right, to those of the pixel's source."""
    result = np.empty_like(image)
    height, width = image.shape[1:]
    for row in range(height):
        for column in range(width):
            down, right = source(row - (height - 1) / 2, column - (width - 1) / 2)
            result[:, row, column] = sampled_at(image, down + (height - 1) / 2, right + (width - 1) / 2)
    return result


def turned(angle: float) -> Callable[[float, float], tuple[float, float]]:
    cos, sin = math.cos(angle), math.sin(angle)
    return lambda down, right: (down * cos - right * sin, down * sin + right * cos)


def test_rotation() -> None:
    images, draws = pictures(), drawn()
    expected = [
        warped(image, turned(math.radians(40) * (2 * given[1] - 1))) if given[0] < 0.6 else image
        for image, given in zip(images.double().numpy(), numbers(draws, 2), strict=True)
    ]
    assert_close(changed(Rotation(40, 0.6), images), np.stack(expected), 2e-5)


def test_rotation_by_a_quarter_turns_the_image() -> None:
    image = pictures(1, 9, 9)
    quarter = warped(image[0].double().numpy(), turned(math.pi / 2))
    assert_close(quarter, np.rot90(image[0].double().numpy(), -1, axes=(1, 2)), 1e-9)


def test_lens_distortion() -> None:
    images, draws = pictures(), drawn()
    corner = (HEIGHT / 2) ** 2 + (WIDTH / 2) ** 2

    def lens(k: float) -> Callable[[float, float], tuple[float, float]]:
        def source(down: float, right: float) -> tuple[float, float]:
            stretch = 1 + k * (down**2 + right**2) / corner
            return down * stretch, right * stretch

        return source

    expected = [
        warped(image, lens(0.3 * (2 * given[1] - 1))) if given[0] < 0.6 else image
        for image, given in zip(images.double().numpy(), numbers(draws, 2), strict=True)
    ]
    assert_close(changed(LensDistortion(0.3, 0.6), images), np.stack(expected))


@pytest.mark.parametrize("change", [Rotation(0.0, 1.0), LensDistortion(0.0, 1.0)])
def test_no_distortion_is_the_image(change: Any) -> None:
    images = pictures()
    assert_close(changed(change, images), images.double().numpy(), 2e-6)


def test_shift_is_a_crop_of_the_padded_image() -> None:
    images, draws = pictures(60), drawn(60)
    for mode, padding in (("zeros", 3), ("reflect", 3), ("zeros", 15)):
        mirrored: Any = {"zeros": "constant"}.get(mode, mode)
        padded = np.pad(images.double().numpy(), ((0, 0), (0, 0), (padding, padding), (padding, padding)), mirrored)
        expected = []
        for image, given in zip(padded, numbers(draws, 2), strict=True):
            top, left = (math.floor(number * (2 * padding + 1)) for number in given)
            expected.append(image[:, top : top + HEIGHT, left : left + WIDTH])
        found = changed(RandomShift(padding, mode), images, draws)  # pyright: ignore[reportArgumentType]
        assert np.array_equal(found, np.stack(expected)), mode
    with pytest.raises(ValueError, match="padding=13 must be less than the 13 pixels"):
        changed(RandomShift(13, "reflect"), images, draws)


def test_flip() -> None:
    images, draws = pictures(200), drawn(200)
    flips = [given[0] < 0.3 for given in numbers(draws, 1)]
    expected = [image[:, :, ::-1] if flip else image for image, flip in zip(images.numpy(), flips, strict=True)]
    assert np.array_equal(changed(RandomFlip(0.3), images, draws), np.stack(expected))


def test_alternating_flip_shows_both_sides_in_two_epochs() -> None:
    images = pictures(200)
    epochs = [changed(RandomFlip(alternating=True), images, drawn(200, epoch=epoch)) for epoch in range(3)]
    other_draws = drawn(200, epoch=1)._replace(keys=hashed(drawn(200).keys))
    assert np.array_equal(epochs[0], epochs[2])
    assert np.array_equal(epochs[0], epochs[1][..., ::-1])
    assert np.array_equal(epochs[1], changed(RandomFlip(alternating=True), images, other_draws))
    straight = sum(np.array_equal(one, two) for one, two in zip(epochs[0], images.double().numpy(), strict=True))
    assert 70 < straight < 130


# --- erasing, mixing


def test_random_erasing() -> None:
    images, draws = pictures(80), drawn(80)
    erasing = RandomErasing(0.8, (0.1, 0.9), (0.2, 4.0))
    expected = images.double().numpy().copy()
    tried = set()
    for image, given in zip(expected, numbers(draws, 23), strict=True):
        for number in range(10):
            area = HEIGHT * WIDTH * (0.1 + 0.8 * given[3 + number])
            aspect = math.exp(math.log(0.2) + given[13 + number] * math.log(20.0))
            rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if rows < HEIGHT and columns < WIDTH:
                tried.add(number)
                top, left = int(given[1] * (HEIGHT - rows + 1)), int(given[2] * (WIDTH - columns + 1))
                if given[0] < 0.8:
                    image[:, top : top + rows, left : left + columns] = np.array(MEAN)[:, None, None]
                break
    assert len(tried) > 2
    assert_close(changed(erasing, images, draws), expected, 1e-6)


def test_random_erasing_that_never_fits_leaves_the_image() -> None:
    images = pictures()
    assert np.array_equal(changed(RandomErasing(1.0, (1.0, 1.0), (1.0, 1.0)), images), images.double().numpy())


def test_erasing_with_noise_differs_in_every_pixel() -> None:
    images = torch.full((COUNT, 3, 40, 40), 2.0)
    found = changed(RandomErasing(1.0, (0.3, 0.4), (1.0, 1.0), "noise"), images)
    noise = found[found < 2.0]
    assert len(np.unique(noise)) > 0.99 * len(noise) > 1000
    assert abs(noise.mean() - 0.5) < 0.02


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.4, 1.0, 2.0, 8.0])
def test_quantiles_of_the_beta_distribution(alpha: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    probabilities = np.linspace(0, 0.5, 257)[3:]
    expected = stats.beta.ppf(probabilities, alpha, alpha)
    assert np.abs(beta_powers(alpha, 256)[3:] ** (1 / min(alpha, 1)) - expected).max() < 1e-5
    draws = torch.linspace(0.001, 0.999, 1001)
    found = Mix(mixup=alpha)._beta(draws, alpha).double().numpy()
    assert np.abs(found - stats.beta.ppf(draws.double().numpy(), alpha, alpha)).max() < 3e-4


def mixed(images: Pixels, classes: list[int], given: list[list[float]], mix: Mix) -> tuple[Pixels, Pixels]:
    from scipy.stats import beta

    result, weights = images.copy(), np.zeros((len(images), CLASSES))
    for i, (_, one, down, right, which) in enumerate(given):
        j = i ^ 1 if i ^ 1 < len(images) else i
        by_mixup = which < 0.5 if mix.mixup and mix.cutmix else bool(mix.mixup)
        kept = np.ones((HEIGHT, WIDTH))
        if given[i][0] < mix.p and by_mixup:
            kept[:] = beta.ppf(one, mix.mixup, mix.mixup)
        elif given[i][0] < mix.p:
            part = math.sqrt(1 - beta.ppf(one, mix.cutmix, mix.cutmix))
            rows, columns = math.floor(part * HEIGHT), math.floor(part * WIDTH)
            top = math.floor(math.floor(down * HEIGHT) - rows / 2)
            left = math.floor(math.floor(right * WIDTH) - columns / 2)
            kept[max(0, top) : max(0, top + rows), max(0, left) : max(0, left + columns)] = 0
        result[i] = kept * images[i] + (1 - kept) * images[j]
        weights[i, classes[i]] += kept.mean()
        weights[i, classes[j]] += 1 - kept.mean()
    return result, weights


@pytest.mark.parametrize("mix", [Mix(0.4, 0.0, 0.8), Mix(0.0, 1.0, 0.8), Mix(0.2, 2.0)])
def test_mixup_and_cutmix(mix: Mix) -> None:
    pytest.importorskip("scipy.stats")
    images, draws = pictures(61), drawn(61)
    found, weights = mix.augment_batch(images, labels(61), draws)
    expected, expected_weights = mixed(images.double().numpy(), labels(61).tolist(), numbers(draws, 5), mix)
    assert_close(found.double().numpy(), expected, 5e-4)
    assert_close(weights.double().numpy(), expected_weights, 5e-4)
    assert torch.equal(found[60], images[60]), "without a neighbour"
    assert (weights.sum(1) - 1).abs().max() < 1e-6
    again, twice = mix.augment_batch(found, weights, draws)
    assert again.shape == found.shape
    assert (twice.sum(1) - 1).abs().max() < 1e-6, "weights are mixed as well"


def test_neighbours_of_several_views_are_views_of_the_next_sample() -> None:
    assert neighbours(10, 2, torch.device("cpu")).tolist() == [2, 3, 0, 1, 6, 7, 4, 5, 8, 9]


# --- RandAugment

LEVELS = 255.0


def as_pillow(image: Pixels) -> Image.Image:
    return Image.fromarray((image * LEVELS).round().astype(np.uint8).transpose(1, 2, 0))


def by_pillow(name: str, image: Pixels, sign: int, strength: float) -> Pixels:
    picture, factor = as_pillow(image), 1 + sign * 0.9 * strength
    enhanced = {"brightness": ImageEnhance.Brightness, "color": ImageEnhance.Color,
                "contrast": ImageEnhance.Contrast, "sharpness": ImageEnhance.Sharpness}  # fmt: skip
    if name in enhanced:
        picture = enhanced[name](picture).enhance(factor)
    elif name == "posterize":
        picture = ImageOps.posterize(picture, 8 - round(4 * strength))
    elif name == "solarize":
        picture = ImageOps.solarize(picture, math.ceil(LEVELS * (1 - strength)))
    elif name == "auto_contrast":
        picture = ImageOps.autocontrast(picture)
    elif name == "equalize":
        picture = ImageOps.equalize(picture)
    return np.asarray(picture).transpose(2, 0, 1) / LEVELS


def by_map(name: str, image: Pixels, sign: int, strength: float) -> Pixels:
    angle, shear, shift = (sign * strength * most for most in (math.radians(30), 0.3, 150 / 331))
    height, width = image.shape[1:]
    maps: dict[str, Callable[[float, float], tuple[float, float]]] = {
        "rotate": turned(angle),
        "shear_x": lambda down, right: (down, right + shear * down),
        "shear_y": lambda down, right: (down + shear * right, right),
        "translate_x": lambda down, right: (down, right + shift * width),
        "translate_y": lambda down, right: (down + shift * height, right),
    }
    return warped(image, maps[name])


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("sign", [1, -1])
def test_operations_of_randaugment(name: str, sign: int) -> None:
    # the last image has few levels, one of them alone in a channel
    images = torch.cat([pictures(2, 21, 33), (pictures(1, 21, 33) * 3).round() / 4 + 0.1])
    images[2, 1] = 0.4
    images = (images * LEVELS).round() / LEVELS
    augment = RandAugment(magnitude=18)
    layer = torch.full((3,), float(OPERATIONS.index(name))), torch.full((3,), float(sign))
    found = augment.changed(images, layer, torch.tensor(MEAN).view(1, -1, 1, 1)).double().numpy()
    geometric = name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
    reference = by_map if geometric else by_pillow
    expected = np.stack([reference(name, image, sign, 0.6) for image in images.double().numpy()])
    # Pillow rounds its levels, of the mean luma and of blurred pixels before they are weighted as well
    assert_close(found, expected, 2e-5 if geometric or name == "identity" else 1.6 / LEVELS)


def test_randaugment_draws_every_operation_for_each_image() -> None:
    images, draws = pictures(400, 9, 9), drawn(400)
    whole = changed(RandAugment(2, 15, p=0.8), images, draws)
    given = numbers(draws, 6)
    made = [[int(given[i][3 * n + 1] * 14) if given[i][3 * n] < 0.8 else 0 for n in (0, 1)] for i in range(400)]
    assert {operation for pair in made for operation in pair} == set(range(14))
    augment, mean = RandAugment(2, 15), torch.tensor(MEAN).view(1, -1, 1, 1)
    for i in range(0, 400, 23):  # one image alone, one operation after the other
        image = images[i : i + 1]
        for n in (0, 1):
            sign = 1.0 if given[i][3 * n + 2] < 0.5 else -1.0
            image = augment.changed(image, (torch.tensor([float(made[i][n])]), torch.tensor([sign])), mean)
        assert_close(whole[i : i + 1], image.double().numpy(), 1e-5)


def test_blurred_pixels_are_pillows() -> None:
    from PIL import ImageFilter

    image = pictures(1, 20, 20)
    expected = np.asarray(as_pillow(image[0].double().numpy()).filter(ImageFilter.SMOOTH)).transpose(2, 0, 1)
    found = randaugment.smoothed(image)[0].double().numpy() * LEVELS
    assert np.abs(found - expected).max() <= 1
    tiny = pictures(1, 2, 2)
    assert torch.equal(randaugment.smoothed(tiny), tiny)


# --- composition


def test_a_change_draws_the_same_with_others_and_without() -> None:
    images, draws = pictures(), drawn()
    alone = Compose(batch={"cast": ColorCast(9), "shift": None})
    both = Compose(batch={"cast": ColorCast(9), "flip": RandomFlip(1.0)})
    one, two = (each.augment_batch(images, labels(), draws)[0] for each in (alone, both))
    assert torch.equal(one.flip(3), two)
    keys = {name: salted(draws, name).keys for name in ("cast", "flip")}
    assert not torch.equal(keys["cast"], keys["flip"])
    assert min(keys["cast"].min(), keys["flip"].min()) >= 0


CHANGES: list[Any] = [
    ColorJitter(hue=0.2), ColorCast(), Vignette(), Rotation(), LensDistortion(), RandomErasing(fill="noise"),
    RandAugment(), RandomFlip(), RandomShift(2), Mix(0.2, 1.0), RandomGrayscale(0.5),
]  # fmt: skip
EACH_CHANGE = pytest.mark.parametrize("change", CHANGES, ids=[type(change).__name__ for change in CHANGES])


@EACH_CHANGE
def test_an_image_is_changed_alike_alone_and_in_a_batch(change: Any) -> None:
    """So that the number of workers does not show."""
    images, draws = pictures(), drawn()
    whole, whole_labels = change.augment_batch(images, labels(), draws)
    for first in range(0, COUNT, 2):  # pairs are neighbours
        two = slice(first, first + 2)
        cut = draws._replace(keys=draws.keys[two], sample_keys=draws.sample_keys[two])
        part, part_labels = change.augment_batch(images[two], labels()[two], cut)
        assert torch.allclose(part, whole[two], atol=1e-6)
        assert torch.equal(part_labels, whole_labels[two])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@EACH_CHANGE
def test_a_gpu_changes_images_alike(change: Any) -> None:
    images, draws = pictures(), drawn()
    expected, weights = change.augment_batch(images, labels(), draws)
    there = draws._replace(keys=draws.keys.cuda(), sample_keys=draws.sample_keys.cuda(), mean=draws.mean.cuda())
    found, found_weights = change.augment_batch(images.cuda(), labels().cuda(), there)
    # a rounding may move a value over a threshold
    assert ((found.cpu() - expected).abs() > 1e-4).float().mean() < 0.01
    assert torch.allclose(found_weights.cpu(), weights, atol=1e-5)


@EACH_CHANGE
def test_grey_images_are_changed(change: Any) -> None:
    if isinstance(change, RandomGrayscale):
        pytest.skip("a grey image is grey already")
    images, draws = pictures()[:, :1], drawn()._replace(mean=torch.full((1, 1, 1, 1), 0.5))
    found, _ = change.augment_batch(images, labels(), draws)
    assert found.shape == images.shape
    assert not torch.equal(found, images)
    assert 0 <= found.min() <= found.max() <= 1 + 1e-6


@EACH_CHANGE
def test_the_layout_in_memory_does_not_show(change: Any) -> None:
    """Decoded crops come with their channels last."""
    images, draws = pictures(), drawn()
    found, _ = change.augment_batch(images.contiguous(memory_format=torch.channels_last), labels(), draws)
    assert torch.allclose(found, change.augment_batch(images, labels(), draws)[0], atol=1e-6)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: ColorJitter(brightness=-1), "brightness=-1 must be at least 0"),
    (lambda: ColorJitter(hue=0.6), "hue=0.6 must be at least 0 and at most 0.5"),
    (lambda: RandomGrayscale(1.2), "p=1.2 must be at least 0 and at most 1"),
    (lambda: ColorCast(-1), "levels=-1"),
    (lambda: Vignette(start=2), "start=2 must be at least 0 and at most 1"),
    (lambda: Rotation(-3), "degrees=-3"),
    (lambda: LensDistortion(0.5), "degree=0.5 must be at least 0 and less than 1/3"),
    (lambda: RandomErasing(scale=(0.4, 0.2)), r"scale=\[0.4,0.2\] must be two numbers greater than 0"),
    (lambda: Mix(0, 0), "mixup=0 and cutmix=0: at least one must be greater than 0"),
    (lambda: RandAugment(magnitude=31), "magnitude=31 must be at least 0 and at most 30"),
    (lambda: RandAugment(operations=0), "operations=0"),
    (lambda: RandomFlip(0.3, alternating=True), "p=0.3 must be 0.5"),
    (lambda: RandomShift(-1), "padding=-1"),
    (lambda: Compose(size={3: 8}), r"size=\{3: 8\} must begin with epoch 0"),
    (lambda: Compose(batch={"x": 3}), "batch.x=int must have augment_batch"),
    (lambda: Compose(crop=3), "crop=int must have views"),
]


@pytest.mark.parametrize(("build", "text"), WRONG)
def test_wrong_arguments_are_named(build: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build()
