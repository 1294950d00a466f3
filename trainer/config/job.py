"""What the processes of a run are to do: the object that goes from the command to its workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runs import folder
from .schema import Config, load


@dataclass(frozen=True)
class JobSpec:
    """A run, what is to be done with it, and where it begins."""

    config: Config
    run_dir: Path
    verb: str = "train"
    """train | resume | eval."""
    checkpoint: Path | None = None
    """Checkpoint of resume and eval; the newest whole one if None."""
    shares_folder: bool = True
    """Whether all processes see the run folder of the first; else each has one of its own."""

    @property
    def is_evaluation(self) -> bool:
        return self.verb == "eval"

    def to_argv(self) -> tuple[str, str, str]:
        """Arguments of a process that is to do it: `from_argv` reads the config there."""
        return str(self.run_dir), self.verb, str(self.checkpoint or "")

    @classmethod
    def from_argv(cls, argv: Sequence[str]) -> "JobSpec":
        """The job of a process by its arguments RUN_DIR [VERB [CHECKPOINT]].

        Raises:
            OSError, ValueError: the run's config cannot be read.
        """
        run_dir, verb, checkpoint = [*argv, *["", "train", ""][len(argv) :]]
        return cls.load(Path(run_dir), verb, Path(checkpoint) if checkpoint else None)

    @classmethod
    def load(cls, run_dir: Path, verb: str = "train", checkpoint: Path | None = None) -> "JobSpec":
        """The job of a frozen run. Raises as `from_argv`."""
        run_dir = run_dir.absolute()
        return cls(load(run_dir), run_dir, verb, checkpoint)


def freeze(run_dir: Path, values: Mapping[str, Any]) -> Config:
    """Write the config of a new run. Returns it as `load` would."""
    return Config.model_validate(folder.freeze(run_dir, values))
