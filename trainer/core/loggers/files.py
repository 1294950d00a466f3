"""Files of loggers after a resumption: what was logged after the checkpoint is removed, the rest stays."""

import csv
import os
import struct
import warnings
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

from lightning.fabric.loggers import CSVLogger, Logger, TensorBoardLogger

from ...base.atomic_file import atomic_file
from ...base.regular_file import open_regular
from .contract import LoggerContract


def cut_logger(logger: Logger, step: int) -> None:
    """Remove what a logger has written of steps after `step`, which training is about to repeat.

    By the logger's own `cut_after` (LoggerContract); in the files of Lightning's CSV and TensorBoard loggers; nowhere
    else: services cannot take back what they have.
    """
    if isinstance(logger, LoggerContract) and type(logger).cut_after is not LoggerContract.cut_after:
        logger.cut_after(step)
    elif isinstance(logger, CSVLogger):
        _cut_csv(logger, step)
    elif isinstance(logger, TensorBoardLogger):
        for path in Path(logger.log_dir).glob("events.out.tfevents.*"):
            cut_events(path, step)


def _cut_csv(logger: CSVLogger, step: int) -> None:
    """Cut a CSV logger's rows: its writer deletes the file of an earlier one, so they are put back."""
    path = Path(logger.log_dir) / "metrics.csv"
    kept = path.with_name("metrics.csv.kept")
    if path.is_file():
        os.replace(path, kept)
    if not kept.is_file():
        return
    with TextIOWrapper(open_regular(kept, follow_links=False), newline="", errors="replace") as file:
        reader = csv.DictReader(file)
        rows = [row for row in reader if _step_of(row) <= step]
        columns = sorted(reader.fieldnames or ["step"])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is not empty")
        writer = logger.experiment
    writer.metrics_keys = list(columns)
    with atomic_file(path, newline="") as file:
        table = csv.DictWriter(file, columns, restval="", extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)
    kept.unlink()


def _step_of(row: dict[str, str]) -> float:
    try:
        return float(row.get("step") or "inf")
    except ValueError:  # of a row that a killed process has left
        return float("inf")


def cut_events(path: Path, step: int) -> None:
    """Rewrite an event file without the events after `step`, and without a truncated last one."""
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

    with open_regular(path, follow_links=False) as file:
        content = file.read()
    with atomic_file(path, "wb") as file:
        for frame, payload in _frames(content):
            event = Event.FromString(payload)
            if event.step <= step or event.HasField("file_version"):
                file.write(frame)


def _frames(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Complete records of a TFRecord file (length, its checksum, payload, its checksum), each with its payload."""
    position = 0
    while position + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, position)
        end = position + 12 + length + 4
        if end > len(content):
            return
        yield content[position:end], content[position + 12 : position + 12 + length]
        position = end
