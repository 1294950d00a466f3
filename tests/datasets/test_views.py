"""Crops chosen before decoding: their draws, their pixels, and the batches made of them."""

import io
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from folders import SHARED_DATA
from PIL import Image
from pool import Pool
from runs import Freeze, distance, weights

from leyden.datasets.augmentation.crops import RandomCrop, RandomResizedCrop
from leyden.datasets.decode import Box, decode, resized_centre, resized_crop
from leyden.datasets.hashing import splitmix64
from leyden.datasets.image_folder import ImageFolder
from leyden.datasets.synthetic import Synthetic
from leyden.trainer.base.errors import CannotStart
from leyden.trainer.compose.composer import Composer
from leyden.trainer.config.schema import load
from leyden.trainer.core.batch import Part
from leyden.trainer.data.abilities import writes_crops
from leyden.trainer.data.batch_augmentation import mirror_images
from leyden.trainer.data.batch_memory import BatchMemory, RowLayout
from leyden.trainer.data.batch_reader import SampleBatches
from leyden.trainer.data.batch_sources import BatchSources
from leyden.trainer.data.chunked_batch import ChunkedBatch
from leyden.trainer.data.datamodule import ImageData
from leyden.trainer.data.view_reader import one_thread
from leyden.trainer.entrypoints.start import start

PHOTOGRAPHS = SHARED_DATA / "imagenet-sample.zip"
GOLDEN = 0x9E3779B97F4A7C15
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def stream(key: int) -> Iterator[float]:
    """The numbers of a view: outputs of splitmix64's generator."""
    state = splitmix64(key)
    while True:
        state += GOLDEN
        yield (splitmix64(state) >> 11) / 2**53


# --- draws


def by_torchvision(
    height: int, width: int, draw: Iterator[float], scale: Sequence[float], ratio: Sequence[float]
) -> Box:
    """RandomResizedCrop.get_params, with numbers drawn elsewhere."""
    for _ in range(10):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * next(draw))
        aspect = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * next(draw))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left = math.floor(next(draw) * (width - w + 1))
            return left, math.floor(next(draw) * (height - h + 1)), w, h
    whole = width / height
    if whole < min(ratio):
        w, h = width, round(width / min(ratio))
    elif whole > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return (width - w) // 2, (height - h) // 2, w, h


@pytest.mark.parametrize("size", [(375, 500), (500, 375), (40, 1000), (1000, 40), (1, 1), (7, 9)])
def test_random_resized_crop_is_torchvisions(size: tuple[int, int]) -> None:
    for scale, ratio in (((0.08, 1.0), (3 / 4, 4 / 3)), ((0.35, 1.0), (3 / 4, 4 / 3)), ((0.9, 1.0), (0.5, 0.6))):
        augment = RandomResizedCrop(scale, ratio)
        for key in range(200):
            draw = stream(key)
            flip = next(draw) < 0.5
            box = by_torchvision(*size, draw, scale, ratio)
            assert augment.views(size, key) == [(box, flip)]
            left, top, width, height = box
            assert left >= 0 <= top
            assert left + width <= size[1]
            assert top + height <= size[0]


def test_crops_have_the_wanted_distribution() -> None:
    augment = RandomResizedCrop((0.1, 0.5), (0.5, 2.0))
    views = [augment.views((1000, 1000), key)[0] for key in range(4000)]
    areas = np.array([width * height / 1e6 for (_, _, width, height), _ in views])
    ratios = np.log([width / height for (_, _, width, height), _ in views])
    assert abs(areas.mean() - 0.3) < 0.008
    assert np.abs(np.quantile(areas, [0.25, 0.75]) - [0.2, 0.4]).max() < 0.015
    assert np.abs(np.quantile(ratios, [0.25, 0.5, 0.75]) - np.log([0.5**0.5, 1, 2**0.5])).max() < 0.05
    places = np.array([left / (1000 - width) for (left, _, width, _), _ in views])
    assert np.abs(np.quantile(places, [0.1, 0.5, 0.9]) - [0.1, 0.5, 0.9]).max() < 0.04
    assert abs(sum(flip for _, flip in views) - 2000) < 160


def test_views_of_an_image_differ_and_the_first_is_the_only_ones() -> None:
    four = RandomResizedCrop(views=4)
    for key in range(50):
        views = four.views((300, 400), key)
        assert len({box for box, _ in views}) == 4
        assert views[:1] == RandomResizedCrop().views((300, 400), key)


def test_random_crop_takes_its_part_anywhere() -> None:
    crop = RandomCrop(512, 224)
    views = [crop.views((1024, 2048), key)[0][0] for key in range(3000)]
    assert {box[2:] for box in views} == {(448, 448)}
    lefts, tops = {box[0] for box in views}, {box[1] for box in views}
    assert (min(lefts), max(lefts)) == pytest.approx((0, 1600), abs=8)
    assert (min(tops), max(tops)) == pytest.approx((0, 576), abs=8)
    assert RandomCrop(512, 512).views((9, 9), 3)[0][0] == (0, 0, 9, 9)
    assert RandomCrop(512, 1).views((9, 9), 3)[0][0][2:] == (1, 1)
    # each of the 289 places along a side of 512 pixels
    assert {RandomCrop(512, 224).views((512, 600), key)[0][0][1] for key in range(6000)} == set(range(289))


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: RandomResizedCrop(scale=(0.5, 1.5)), r"scale=\[0.5,1.5\] must be at most 1"),
        (lambda: RandomResizedCrop(ratio=(2, 1)), r"ratio=\[2,1\] must be two numbers greater than 0"),
        (lambda: RandomResizedCrop(flip=1.2), "flip=1.2 must be at least 0 and at most 1"),
        (lambda: RandomResizedCrop(views=0), "views=0 must be at least 1"),
        (lambda: RandomCrop(100, 224), "crop=224 must be at least 1 and at most the 100 pixels of resize"),
    ],
)
def test_wrong_arguments_are_named(build: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build()


# --- pixels


def photographs(count: int) -> list[bytes]:
    with zipfile.ZipFile(PHOTOGRAPHS) as archive:
        names = sorted(name for name in archive.namelist() if not name.endswith("/"))
        return [archive.read(name) for name in names[:: len(names) // count]]


def by_pillow(pixels: Pixels, box: Box, side: int) -> Pixels:
    left, top, width, height = box
    part = Image.fromarray(pixels[top : top + height, left : left + width])
    return np.asarray(part.resize((side, side), Image.Resampling.BILINEAR))


def grey_levels_apart(ours: torch.Tensor, theirs: Pixels) -> int:
    return int(np.abs(ours.permute(1, 2, 0).numpy().astype(int) - theirs.astype(int)).max())


def assert_as_pillow(data: list[bytes], keys: range) -> None:
    worst = 0
    for number, each in enumerate(data):
        pixels = decode(each, "x")
        for key in keys:
            box = RandomResizedCrop().views(pixels.shape[:2], 100 * number + key)[0][0]
            ours = resized_crop(pixels, box, (224, 224))
            assert ours.is_contiguous(memory_format=torch.channels_last)
            worst = max(worst, grey_levels_apart(ours[0], by_pillow(pixels, box, 224)))
    assert worst <= 2


NEEDS_PHOTOGRAPHS = pytest.mark.skipif(not PHOTOGRAPHS.is_file(), reason=f"needs {PHOTOGRAPHS}")


@NEEDS_PHOTOGRAPHS
def test_crops_of_photographs_are_pillows_to_two_grey_levels() -> None:
    assert_as_pillow(photographs(30), range(2))


@NEEDS_PHOTOGRAPHS
@pytest.mark.slow
def test_crops_of_all_photographs_are_pillows_to_two_grey_levels() -> None:
    assert_as_pillow(photographs(600), range(2))


def noise(height: int, width: int) -> Pixels:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("box", [(0, 5, 100, 80), (0, 0, 100, 100), (3, 2, 64, 90), (9, 9, 1, 1), (3, 2, 64, 64)])
def test_crops_have_one_layout_in_memory(box: Box) -> None:
    pixels = noise(100, 100)
    ours = resized_crop(pixels, box, (64, 64))
    assert ours.is_contiguous(memory_format=torch.channels_last)
    assert grey_levels_apart(ours[0], by_pillow(pixels, box, 64)) <= 2


def test_crops_of_noise_are_pillows() -> None:
    for size in ((300, 400), (31, 17)):
        pixels = noise(*size)
        for key in range(20):
            box = RandomResizedCrop().views(size, key)[0][0]
            assert grey_levels_apart(resized_crop(pixels, box, (64, 64))[0], by_pillow(pixels, box, 64)) <= 2


@pytest.mark.parametrize("size", [(40, 56), (56, 40), (61, 61), (20, 27), (32, 32)])
def test_centre_is_that_of_resize_and_center_crop(size: tuple[int, int]) -> None:
    pixels, (height, width) = noise(*size), size
    short = min(size)
    rows, columns = int(32 * height / short), int(32 * width / short)
    whole = np.asarray(Image.fromarray(pixels).resize((columns, rows), Image.Resampling.BILINEAR))
    top, left = round((rows - 28) / 2), round((columns - 28) / 2)
    ours = resized_centre(pixels, 32, 28)
    assert ours.shape == (3, 28, 28)
    assert ours.is_contiguous()
    assert grey_levels_apart(ours, whole[top : top + 28, left : left + 28]) <= 2


def test_a_line_of_pixels_is_not_enlarged_as_a_whole() -> None:
    assert resized_centre(noise(1, 200_000), 256, 224).shape == (3, 224, 224)
    assert resized_centre(noise(200_000, 1), 256, 224).shape == (3, 224, 224)


def test_a_decode_uses_one_thread_and_gives_the_others_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("size", [(5, 7), (110, 130)])
def test_images_are_mirrored_where_it_is_said(
    dtype: torch.dtype, layout: torch.memory_format, size: tuple[int, int]
) -> None:
    images = torch.randint(256, (40, 3, *size), dtype=torch.uint8).to(dtype).contiguous(memory_format=layout)
    flips = torch.arange(40) % 3 == 0
    before, found = images.clone(), mirror_images(images, flips)
    for image, result, flip in zip(images, found, flips.tolist(), strict=True):
        assert torch.equal(result, image.flip(2) if flip else image)
    assert torch.equal(images, before)
    assert mirror_images(images, None) is images


# --- batches


def jpeg(number: int) -> bytes:
    y, x = np.mgrid[0 : 40 + number, 0:64]
    pixels = np.stack([x * 3, y * 3 + number, (x + 5 * number) % 256], axis=2).clip(0, 255).astype(np.uint8)
    return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=95)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """24 training and 5 validation images of two classes."""
    for number in range(24):
        place = tmp_path / "images" / "train" / ("dark", "light")[number % 2] / f"{number:02}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(jpeg(number))
    for number in range(5):
        place = tmp_path / "images" / "val" / ("dark", "light")[number % 2] / f"{number:02}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(jpeg(number))
    return tmp_path / "images"


def options(folder: Path, *more: str) -> list[str]:
    return ["dataset=image_folder", f"dataset.root={folder}", "dataset.image_size=16", "batch_size=8", "model=mlp",
            "model.hidden=[4]", "augment=[imagenet,mixup]", *more]  # fmt: skip


def data_of(freeze: Freeze, name: str, *overrides: str, share: tuple[int, int] = (0, 1)) -> ImageData:
    return ImageData(load(freeze(name, *overrides)), share)


def rows_of(data: ImageData, parts: Sequence[Part]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [data.on_after_batch_transfer(part.batch, 0) for part in parts]


def same(one: Sequence[tuple[torch.Tensor, ...]], other: Sequence[tuple[torch.Tensor, ...]]) -> bool:
    return len(one) == len(other) > 0 and all(
        torch.equal(a, b) for first, second in zip(one, other, strict=True) for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pixels_are_a_function_of_seed_epoch_and_sample(freeze: Freeze, folder: Path, num_workers: int) -> None:
    """Whatever was read before, from any step on, by any number of processes, at any number of workers."""
    data = data_of(freeze, "one", *options(folder))
    expected = rows_of(data, list(data.train_parts(1)))
    again = data_of(freeze, "again", *options(folder, f"dataset.num_workers={num_workers}"))
    list(again.train_parts(0, end=1))
    assert same(rows_of(again, list(again.train_parts(1))), expected)
    assert same(rows_of(again, list(again.train_parts(1, first_step=2))), expected[2:])
    shares = [data_of(freeze, f"share{i}", *options(folder), share=(i, 2)) for i in range(2)]
    halves = [rows_of(each, list(each.train_parts(1))) for each in shares]
    joined = [tuple(torch.cat(both) for both in zip(*pair, strict=True)) for pair in zip(*halves, strict=True)]
    for found, wanted in zip(joined, expected, strict=True):
        assert torch.allclose(found[0], wanted[0], atol=1e-6)
        assert torch.equal(found[1], wanted[1])
    other_epoch, other_seed = data.train_parts(2), data_of(freeze, "seed", *options(folder, "seed=1")).train_parts(1)
    assert not same(rows_of(data, list(other_epoch)), expected)
    assert not same(rows_of(data, list(other_seed)), expected)


def test_a_batch_is_the_crops_of_its_samples_mirrored_on_the_batch(freeze: Freeze, folder: Path) -> None:
    data = data_of(freeze, "run", *options(folder, "augment.batch=null"))
    augment = RandomResizedCrop()
    for part, batch in zip(data.train_parts(0), data.order.batches(0), strict=True):
        images, labels = data.on_after_batch_transfer(part.batch, 0)
        pixels = data.pixels(images)
        assert part.keys is not None
        assert images.is_contiguous()
        flips = 0
        for row, (index, key) in enumerate(zip(batch.tolist(), part.keys.tolist(), strict=True)):
            dataset: Any = data.train_set
            whole = decode(Path(dataset.name(index)).read_bytes(), "x")
            ((box, flip),) = augment.views(whole.shape[:2], key)
            expected = by_pillow(whole, box, 16)
            flips += flip
            assert grey_levels_apart(pixels[row], expected[:, ::-1] if flip else expected) <= 2
            assert labels[row] == dataset[index][1]
        assert 0 < flips < 8


def test_an_image_is_decoded_once_for_all_its_views(
    freeze: Freeze, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(freeze, "run", *options(folder, "augment.crop.views=3", "dataset.threads=0"))
    one = data_of(freeze, "one", *options(folder, "augment.batch=null"))
    plain = data_of(freeze, "three", *options(folder, "augment.crop.views=3", "augment.batch=null"))
    decoded: list[str] = []
    monkeypatch.setattr("leyden.datasets.file_samples.decode", lambda *a, **k: decoded.append(a[1]) or decode(*a, **k))
    part = next(iter(data.train_parts(0)))
    assert len(decoded) == len(set(decoded)) == 8
    images, labels = data.on_after_batch_transfer(part.batch, 0)
    assert images.shape == (24, 3, 16, 16)
    assert labels.shape == (24, 2)
    assert part.samples == 8
    assert part.keys is not None
    assert len(set(part.keys.tolist())) == 24, "one key for each row: dropout draws by it"
    first, first_labels = one.on_after_batch_transfer(next(iter(one.train_parts(0))).batch, 0)
    three, three_labels = plain.on_after_batch_transfer(next(iter(plain.train_parts(0))).batch, 0)
    assert torch.equal(three[::3], first), "the first of each sample's views"
    assert torch.equal(three_labels.view(8, 3), first_labels[:, None].expand(8, 3))


@pytest.mark.parametrize("views", [1, 3])
def test_views_that_are_mirrored_and_written_as_they_are_read_are_the_same(
    freeze: Freeze, folder: Path, views: int
) -> None:
    data = data_of(freeze, "run", *options(folder, f"augment.crop.views={views}"))
    pairs = data.with_keys(range(8), 0)
    late, early = (BatchSources(data._sources._splits, data.augment, mirrors=m)(("train", 0)) for m in (False, True))
    assert isinstance(early, SampleBatches)
    (images, _, keys), (expected, _, no_keys) = late.read(pairs).batch, early.read(pairs).batch
    assert keys.flips.any()
    assert not no_keys.flips.any()
    assert torch.equal(mirror_images(images, keys.flips), expected)
    layout = RowLayout.of(expected, views)
    assert layout is not None
    lent = BatchMemory(1).lend(layout, len(pairs))
    chunked = ChunkedBatch(early, pairs, 3, layout, lent)
    for read_chunk in chunked.calls():
        read_chunk()
    written = chunked.wait().batch[0]
    assert written.data_ptr() == lent.images.data_ptr()
    assert torch.equal(written, expected)


def test_crops_of_a_subclass_are_not_passed_by() -> None:
    class Own(ImageFolder):
        def crops(self, *args: Any, **kwargs: Any) -> Any: ...

    assert writes_crops(object.__new__(ImageFolder))
    assert not writes_crops(object.__new__(Own))


@pytest.mark.parametrize(
    ("words", "scale", "changes"),
    [
        (["dataset=image_folder"], [0.35, 1.0], None),
        (["dataset=shards"], [0.35, 1.0], None),
        (["dataset=imagenet"], [0.08, 1.0], ["color_jitter"]),
        (["augment=imagenet", "dataset=image_folder"], [0.08, 1.0], ["color_jitter"]),
        (["dataset=image_folder", "augment=[photos,mixup]"], [0.35, 1.0], ["mix"]),
        (["dataset=image_folder", "augment=none"], None, None),
        (["experiment=cots_1b"], None, None),
    ],
)
def test_photographs_are_augmented_unless_the_user_says_otherwise(
    words: list[str], scale: list[float] | None, changes: list[str] | None
) -> None:
    augment: Any = Composer().compose_with_hydra(words)["augment"]
    assert (None if augment is None else augment["crop"]["scale"]) == scale
    assert (None if augment is None or augment["batch"] is None else list(augment["batch"])) == changes


def test_images_grow_with_the_epochs(freeze: Freeze, folder: Path) -> None:
    data = data_of(freeze, "run", *options(folder, "augment.size={0:8,2:12,3:16}"))
    sides = [next(iter(data.train_parts(epoch))).batch[0].shape[2:] for epoch in range(5)]
    assert [tuple(each) for each in sides] == [(8, 8), (8, 8), (12, 12), (16, 16), (16, 16)]
    assert next(iter(data.evaluation_batches("val")))[0][0].shape[2:] == (16, 16)


def test_a_dataset_that_cannot_crop_is_cropped_afterwards(freeze: Freeze) -> None:
    overrides = ["dataset=synthetic", "dataset.samples=64", "dataset.image_shape=[3,20,24]", "batch_size=8",
                 "model=mlp", "augment=imagenet", "augment.batch=null"]  # fmt: skip
    data = data_of(freeze, "run", *overrides)
    part = next(iter(data.train_parts(0)))
    assert part.keys is not None
    images, indices = part.batch[0], data.order.batches(0)[0].tolist()
    assert images.shape == (8, 3, 20, 24)
    source = Synthetic("train", 64, image_shape=(3, 20, 24))
    for row, (index, key) in enumerate(zip(indices, part.keys.tolist(), strict=True)):
        image = source[index][0]
        (left, top, width, height), flip = RandomResizedCrop().views((20, 24), key)[0]
        cut = Image.fromarray(image[:, top : top + height, left : left + width].permute(1, 2, 0).numpy())
        expected = np.asarray(cut.resize((24, 20), Image.Resampling.BILINEAR))
        assert grey_levels_apart(images[row], expected[:, ::-1] if flip else expected) <= 2


def test_a_bad_image_is_replaced_by_the_next(freeze: Freeze, folder: Path) -> None:
    bad = folder / "train" / "dark" / "06.jpg"
    bad.write_bytes(bad.read_bytes()[:200])
    data = data_of(freeze, "run", *options(folder, "dataset.max_bad_samples=1"))
    parts = list(data.train_parts(0))
    assert [part.samples for part in parts] == [8, 8, 8]
    assert len(data.bad_samples) == 1
    assert "06.jpg" in next(iter(data.bad_samples))


# --- evaluation


def test_evaluation_resizes_and_takes_the_centre(freeze: Freeze, folder: Path) -> None:
    auto = data_of(freeze, "auto", *options(folder))
    set_by_hand = data_of(freeze, "set", *options(folder, "dataset.resize=24", "dataset.crop=20"))
    plain = data_of(freeze, "plain", *options(folder, "dataset.resize=null"))
    source = ImageFolder("val", folder, image_size=16)
    for data, resize, crop in ((auto, 18, 16), (set_by_hand, 24, 20)):
        ((images, labels), samples), *rest = data.evaluation_batches("val")
        assert (samples, rest) == (5, [])
        for index in range(5):
            pixels = decode(Path(source.name(index)).read_bytes(), "x")
            assert torch.equal(images[index], resized_centre(pixels, resize, crop))
            assert labels[index] == source[index][1]
    ((images, _), _), *_ = plain.evaluation_batches("val")
    assert all(torch.equal(images[index], source[index][0]) for index in range(5)), "as dataset[index]"
    assert round(224 * 8 / 7) == 256


def test_held_out_samples_are_evaluated_as_a_validation_split_is(freeze: Freeze, folder: Path) -> None:
    train = folder / "train"
    data = data_of(freeze, "run", *options(train, "dataset.val_fraction=0.25", "dataset.resize=24"))
    whole = ImageFolder("train", train, image_size=16, resize=24)
    held_out: Any = data.val_set
    ((images, _), samples), *_ = data.evaluation_batches("val")
    assert samples == len(images) == len(held_out.indices) > 1
    for row, index in enumerate(held_out.indices):
        assert torch.equal(images[row], whole.evaluation_sample(index)[0])
    part = next(iter(data.train_parts(0)))
    assert part.batch[0].shape == (8, 3, 16, 16)


def test_wrong_sizes_are_named() -> None:
    for arguments, text in (
        ({"resize": 8}, "resize=8 must be at least the 16 pixels of the crop, or auto"),
        ({"crop": 0}, "crop=0 must be at least 1"),
        ({"crop": 32, "resize": 24}, "resize=24 must be at least the 32 pixels of the crop"),
    ):
        with pytest.raises(ValueError, match=text):
            ImageFolder.declared(image_size=16, **arguments)


# --- configs and runs


@pytest.mark.parametrize(
    ("override", "key", "text"),
    [
        ("augment.batch.mix.mixup=-1", "augment.batch.mix.mixup", "must be at least 0"),
        ("augment.crop.scale=[0.5,0.1]", "augment.crop.scale", "must be two numbers greater than 0"),
        ("augment.size={1:8}", "augment.size", "must begin with epoch 0"),
    ],
)
def test_a_wrong_key_of_an_augmentation_is_named(
    freeze: Freeze, folder: Path, override: str, key: str, text: str
) -> None:
    with pytest.raises(CannotStart) as caught:
        data_of(freeze, "run", *options(folder, override))
    problem = caught.value.problem
    assert problem is not None
    assert problem.key == key
    assert text in problem.text


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "views"), [("ddp", 1), ("hybrid", 2)])
def test_two_workers_train_on_the_augmented_images_of_one(
    freeze: Freeze, pools: Callable[[int], Pool], folder: Path, strategy: str, views: int
) -> None:
    recipe = ["augment=[imagenet,rand_augment,random_erasing,mixup]", "trainer.max_epochs=2",
              "trainer.precision=64-true", "trainer.enable_progress_bar=false", "logger=none",
              f"augment.crop.views={views}", "model.dropout=0.3"]  # fmt: skip
    one = freeze("one", *options(folder, *recipe))
    two = freeze("two", *options(folder, *recipe, f"strategy={strategy}", "topology.devices_per_node=2"))
    assert start(one) == 0
    pools(2).run(two)
    assert distance(weights(two), weights(one)) <= 1e-6


def test_png_takes_the_same_way(tmp_path: Path) -> None:
    pixels = noise(50, 70)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    place = tmp_path / "cat" / "1.png"
    place.parent.mkdir()
    place.write_bytes(buffer.getvalue())
    box = (3, 5, 40, 30)
    images, label = ImageFolder("train", tmp_path, image_size=16).crops(0, lambda height, width: [box, box], (16, 16))
    assert (tuple(images.shape), label) == ((2, 3, 16, 16), 0)
    assert grey_levels_apart(images[1], by_pillow(pixels, box, 16)) <= 2
