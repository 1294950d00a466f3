"""TensorBoard events, straight in the run folder."""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lightning.fabric.loggers import TensorBoardLogger
from PIL.Image import Image

from ..whole_file import whole_file


class TensorBoard(TensorBoardLogger):
    """Lightning's logger, one TensorBoard run a run folder, however often it is resumed."""

    def __init__(self, root_dir: str):
        super().__init__(root_dir=root_dir, name="", version="")
        self._described = any(Path(root_dir).glob("events.out.tfevents.*"))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Scalars; with the first of them the run's config, as text (not before: TensorBoard takes long to import)."""
        if not self._described:
            self._described = True
            config = (Path(self.root_dir) / "config.yaml").read_text()
            indented = "".join(f"    {line}\n" for line in config.splitlines())
            self.experiment.add_text("config", indented, 0)
        super().log_metrics(metrics, step)
        self.experiment.flush()

    def log_histogram(self, name: str, counts: Mapping[int, int], step: int) -> None:
        """Whole numbers and how often each was seen."""
        values = sorted(counts)
        total = sum(counts.values())
        self.experiment.add_histogram_raw(
            name, min=values[0], max=values[-1], num=total, sum=sum(v * counts[v] for v in values),
            sum_squares=sum(v * v * counts[v] for v in values), bucket_limits=[v + 0.5 for v in values],
            bucket_counts=[counts[v] for v in values], global_step=step,
        )  # fmt: skip

    def log_image(self, name: str, image: Image, step: int) -> None:
        """A picture."""
        self.experiment.add_image(name, np.asarray(image.convert("RGB")), step, dataformats="HWC")
        self.experiment.flush()

    def log_final(self, name: str, parameters: dict[str, Any], varied: list[str], metrics: list[str]) -> None:
        """One row in TensorBoard's HPARAMS tab."""
        from .hparams import records

        for record in records(name, parameters, varied, metrics):
            self.experiment._get_file_writer().add_summary(record)

    def cut_after(self, step: int) -> None:
        """Remove what was written after a step from every event file: training is about to do it again."""
        for path in Path(self.root_dir).glob("events.out.tfevents.*"):
            cut_events(path, step)


def cut_events(path: Path, step: int) -> None:
    """Rewrite an event file without the events after `step`, and without the torn one that a kill may leave."""
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

    content = path.read_bytes()
    with whole_file(path, "wb") as file:
        for frame, payload in _frames(content):
            event = Event.FromString(payload)
            if event.step <= step or event.HasField("file_version"):
                file.write(frame)


def _frames(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Whole records of a TFRecord file (length, its checksum, payload, its checksum), each with its payload."""
    position = 0
    while position + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, position)
        end = position + 12 + length + 4
        if end > len(content):
            return
        yield content[position:end], content[position + 12 : position + 12 + length]
        position = end
