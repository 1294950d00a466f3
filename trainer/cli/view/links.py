# pyright: reportAttributeAccessIssue=false, reportUnknownMemberType=false
# (names of protobuf modules are created at import)
"""A folder with links to the event files of runs, whose names TensorBoard shows."""

from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from ...components.loggers.hparams import end_row, experiment, start_row
from .shown_runs import EVENTS, ShownRun, find_runs

_DESCRIPTION = f"{EVENTS}0.leyden"
"""Event file of the row in HPARAMS, the first by name: TensorBoard keeps the first record of a kind."""
_PINNED = ("val/acc", "train/acc", "val/loss", "train/loss", "val/cost", "train/cost")
_MOST_PINNED = 6


class EventLinks:
    """Links to event files, and for every run a row in HPARAMS, also for one that failed before it logged anything.

    Args:
        root: an empty folder.
        folders: as `find_runs` takes them.
    """

    def __init__(self, root: Path, folders: Mapping[str, Path]):
        self._root = root
        self._folders = folders
        self._described: set[Path] = set()
        self._ended: set[Path] = set()
        self.pinned: list[str] = []
        """Metrics to be shown first."""

    def refresh(self) -> None:
        """Add what is new."""
        runs = list(find_runs(self._folders))
        varied, metrics = _varied_names(runs), list(dict.fromkeys(name for run in runs for name in run.metrics))
        first = dict.fromkeys(run.metrics[0] for run in runs if run.metrics)
        self.pinned = [name for name in dict.fromkeys([*first, *_PINNED]) if name in metrics][:_MOST_PINNED]
        for run in runs:
            own = self._root / run.name
            own.mkdir(parents=True, exist_ok=True)
            self._describe(run, own, varied, metrics)
            for file in run.folder.glob(f"{EVENTS}*"):
                link = own / file.name
                if not link.is_symlink():
                    link.symlink_to(file.absolute())

    def _describe(self, run: ShownRun, own: Path, varied: list[str], metrics: list[str]) -> None:
        if not run.parameters:
            return
        records = []
        if own not in self._described:
            self._described.add(own)
            parameters = {key: run.parameters[key] for key in varied if key in run.parameters} or run.parameters
            records += [experiment(parameters, varied, metrics), start_row(run.name, run.parameters)]
        if own not in self._ended and (outcome := run.outcome()) is not None:
            self._ended.add(own)
            records.append(end_row(outcome))
        if records:
            with (own / _DESCRIPTION).open("ab") as stream:
                writer = RecordWriter(stream)
                if stream.tell() == 0:
                    writer.write(Event(file_version="brain.Event:2").SerializeToString())
                for record in records:
                    writer.write(Event(summary=record).SerializeToString())


def _varied_names(runs: list[ShownRun]) -> list[str]:
    """Hyperparameters that a sweep varies, and others in which runs differ."""
    known = [run.parameters for run in runs if run.parameters]
    swept = dict.fromkeys(key for run in runs for key in run.swept)
    names = swept | dict.fromkeys(key for each in known for key in each)
    return [key for key in names if key in swept or any(each.get(key) != known[0].get(key) for each in known)]
