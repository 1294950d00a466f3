"""Rules for topology.slurm, whose values become lines of a batch script."""

from collections.abc import Iterator

from ..base.errors import Problem
from ..base.text import control_character
from ..hardware.schema import Slurm


def slurm_problems(slurm: Slurm) -> Iterator[Problem]:
    """What sbatch or the script's shell would read otherwise than it is meant."""
    yield from _characters(slurm)
    for option in slurm.sbatch:
        if not option.startswith("-"):
            text = "must hold options of sbatch, each with its value, such as --mail-type=FAIL"
            yield Problem("topology.slurm.sbatch", text, option)
    if slurm.time_min is not None and slurm.signal_s >= 60 * slurm.time_min:
        text = f"must be less than the {60 * slurm.time_min} seconds that topology.slurm.time_min gives the job"
        remedy = f"topology.slurm.signal_s={30 * slurm.time_min}"
        yield Problem("topology.slurm.signal_s", text, slurm.signal_s, remedy)


def _characters(slurm: Slurm) -> Iterator[Problem]:
    for key, value in slurm.model_dump().items():
        for one in value if isinstance(value, list) else [value]:
            found = control_character(str(one))
            if found is not None:
                text = f"must be without control characters, and holds {found}"
                remedy = "one line of the shell for each item of the list" if key == "setup" else ""
                yield Problem(f"topology.slurm.{key}", text, ascii(one)[1:-1], remedy)
            elif "\\" in str(one) and key not in ("setup", "sbatch"):
                text = "must be without backslashes, which sbatch takes as escapes"
                yield Problem(f"topology.slurm.{key}", text, one)
