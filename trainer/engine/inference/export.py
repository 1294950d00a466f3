"""Networks as files for other programs: uint8 images in, class scores out, labels and preparation as metadata."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...base.atomic_file import atomic_file
from ...base.errors import CannotStart
from ...base.versions import versions
from ...config.schema import Config
from ...core.network.trained_network import network_of
from .predictor import Predictor, preparation_of

TOLERANCE = 1e-4
"""Largest difference of a score from the run's own, relative to it where it is above 1."""
_CHECKED, _CALIBRATION, _BATCH = 64, 256, 64
_EVALUATED = 2000
"""Images on which int8 is compared with the network itself."""
_POINTS = 1.0
"""Points of accuracy that int8 may lose."""


class ScoresOfImages(nn.Module):
    """Images (batch, channels, height, width), uint8 or inputs of the network, to scores (batch, classes)."""

    def __init__(self, network: nn.Module, mean: Tensor, std: Tensor):
        super().__init__()
        self.network = network
        self.mean = nn.Buffer(mean.clone())
        self.std = nn.Buffer(std.clone())

    def forward(self, images: Tensor) -> Tensor:
        if images.dtype is torch.uint8:
            images = (images.float() / 255.0 - self.mean) / self.std
        return self.network(images)


def export(predictor: Predictor, config: Config, kind: str, file: Path) -> str:
    """Write the network of a run, checked on images of its test or validation set. Returns what the check has found.

    Args:
        kind: safetensors, pt2, onnx or int8.

    Raises:
        CannotStart: the task computes no class scores, the network cannot be written in this format, or its outputs
            differ; nothing is written.
        OSError: the file cannot be written.
    """
    network = deepcopy(network_of(predictor.task)).cpu().float().eval()
    module = ScoresOfImages(network, *predictor.normalization).eval()
    images = _images(predictor, _CHECKED)
    wanted = _own_scores(predictor, images)
    if config.trainer.precision != "32-true":
        wanted = _scores(module, images)
    about = json.dumps(metadata(predictor, config))
    try:
        with atomic_file(file, "wb") as stream, _quiet():
            run = _WRITERS[kind](module, images, about, stream, predictor)
            found = _points_lost(predictor, run) if kind == "int8" else _difference(run, images, wanted)
    except (CannotStart, OSError):
        raise
    except Exception as error:  # whatever torch.export cannot follow in somebody's network
        first = next(iter(str(error).splitlines()), "")
        raise CannotStart(f"cannot be written as {kind}: {type(error).__name__}: {first[:300]}") from error
    return found


def _own_scores(predictor: Predictor, images: Tensor) -> Tensor:
    try:
        return predictor.scores(images)
    except ValueError as error:
        raise CannotStart(str(error)) from error


def metadata(predictor: Predictor, config: Config) -> dict[str, Any]:
    """What a program needs beside the weights: class names, and how a photograph becomes an input."""
    side = predictor.image_shape[-1] if predictor.image_shape else None
    resize = preparation_of(config).get("resize") or side
    mean, std = (values.flatten().tolist() for values in predictor.normalization)
    return {
        "classes": predictor.class_names,
        "image_shape": list(predictor.image_shape),
        "resize": round(side * 8 / 7) if resize == "auto" and side else resize,
        "mean": mean,
        "std": std,
        "output": f"scores before the {'sigmoid' if predictor.multi_label else 'softmax'}",
        "model": None if config.model is None else {"_target_": config.model.target, **config.model.arguments},
        "train_shape": list(predictor.train_shape),
        "step": predictor.step,
        "versions": versions(),
    }


def _images(predictor: Predictor, count: int) -> Tensor:
    """The first images of the test or validation set, as the dataset gives them."""
    return torch.cat([images for images, _ in _evaluation_batches(predictor, count)])[:count]


def _evaluation_batches(predictor: Predictor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    data = predictor.state.data
    split = next((name for name in ("test", "val") if data.has(name)), None)
    if split is None:
        raise CannotStart("has no test or validation images, on which an exported network is checked")
    for batch, samples in data.evaluation_batches(split):
        if not isinstance(batch, list | tuple) or not isinstance(batch[0], Tensor):
            raise CannotStart("has batches other than (images, labels), on which an exported network is checked")
        yield batch[0], batch[1]
        count -= samples
        if count <= 0:
            return


Runner = Callable[[Tensor], Tensor]
"""Runs what was written: images to scores."""


@torch.no_grad()
def _scores(module: nn.Module, images: Tensor) -> Tensor:
    return module(images)


def _difference(run: Runner, images: Tensor, wanted: Tensor) -> str:
    found = run(images)
    largest = float(((found - wanted).abs() / wanted.abs().clamp(min=1.0)).max())
    if not largest <= TOLERANCE:
        raise CannotStart(f"its exported scores differ by {largest:.2g} from the run's own, more than {TOLERANCE:g}")
    return f"scores of {len(images)} images differ by {largest:.1g} at most"


def _points_lost(predictor: Predictor, run: Runner) -> str:
    """Accuracy that a quantized network loses on the first evaluated images."""
    own = right = 0.0
    count = 0
    for images, labels in _evaluation_batches(predictor, _EVALUATED):
        own += count_right(predictor.scores(images), labels)
        right += count_right(run(images), labels)
        count += len(labels)
    lost = 100.0 * (own - right) / count
    if lost > _POINTS:
        raise CannotStart(f"loses {lost:.2f} points of accuracy on {count} images as int8, more than {_POINTS:g}")
    return f"accuracy on {count} images: {100 * right / count:.2f} %, of the run itself {100 * own / count:.2f} %"


def count_right(scores: Tensor, labels: Tensor) -> float:
    """Images whose class is right; of several labels the part of an image's classes that is."""
    if labels.ndim == 1:
        return float((scores.argmax(1) == labels).sum())
    return float(((scores > 0) == (labels > 0.5)).double().mean(1).sum())


def _write_safetensors(module: ScoresOfImages, images: Tensor, about: str, stream: Any, predictor: Predictor) -> Runner:
    from safetensors.torch import load, save

    tensors = {name: value.clone().contiguous() for name, value in module.network.state_dict().items()}
    stream.write(save(tensors, {"leyden": about}))
    stream.flush()
    read = deepcopy(module)
    read.network.load_state_dict(load(Path(stream.name).read_bytes()))
    return lambda batch: _scores(read, batch)


def _export_program(module: ScoresOfImages, images: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    return torch.export.export(module, (images[:2].clone(),), dynamic_shapes={"images": {0: batch}})


def _write_pt2(module: ScoresOfImages, images: Tensor, about: str, stream: Any, predictor: Predictor) -> Runner:
    kept = io.BytesIO()
    torch.export.save(_export_program(module, images), kept, extra_files={"leyden.json": about})
    stream.write(kept.getvalue())
    program = torch.export.load(io.BytesIO(kept.getvalue())).module()
    return lambda batch: _scores(program, batch)


def _write_onnx(module: ScoresOfImages, images: Tensor, about: str, stream: Any, predictor: Predictor) -> Runner:
    content = _onnx(module, images, about)
    stream.write(content)
    return _session(content)


def _onnx(module: ScoresOfImages, images: Tensor, about: str) -> bytes:
    program = torch.onnx.export(
        _export_program(module, images), input_names=["images"], output_names=["scores"], dynamo=True, verbose=False
    )
    assert program is not None
    program.model.metadata_props["leyden"] = about
    return program.model_proto.SerializeToString()


def _session(content: bytes) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda batch: torch.from_numpy(session.run(None, {"images": batch.cpu().numpy()})[0])


def _write_int8(module: ScoresOfImages, images: Tensor, about: str, stream: Any, predictor: Predictor) -> Runner:
    """Static quantization by ONNX Runtime: int8 weights by channel, ranges of activations from evaluated images."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class CalibrationImages(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(_images(predictor, _CALIBRATION).split(_BATCH))

        def get_next(self) -> dict[str, Any] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
            batch = next(self.left, None)
            return None if batch is None else {"images": batch.numpy()}

    # 7 bits of the weights: with 8 the sums of products saturate on CPUs without VNNI, which cost 2 points of accuracy
    quantize_static(
        onnx.load_from_string(_onnx(module, images, about)), stream.name, CalibrationImages(),
        quant_format=QuantFormat.QDQ, per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        reduce_range=True,
    )  # fmt: skip
    return _session(Path(stream.name).read_bytes())


_WRITERS: Mapping[str, Callable[[ScoresOfImages, Tensor, str, Any, Predictor], Runner]] = {
    "safetensors": _write_safetensors,
    "pt2": _write_pt2,
    "onnx": _write_onnx,
    "int8": _write_int8,
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters print, log and warn of about their own code."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
