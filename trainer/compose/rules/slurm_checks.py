"""Rules for topology.slurm, whose values become lines of a batch script."""

import re
from collections.abc import Iterator

from ...base.errors import Problem
from ...base.text import control_character
from ...hardware.schema import Slurm

_GPUS = r"([\w.-]+:)?[1-9]\d*", "a number of GPUs, or a type and a number: 8, h100:8"
_FORMATS = {
    "gpus_per_node": _GPUS,
    "gpus_per_task": _GPUS,
    "mem": (r"\d+[KMGT]?", "a number and a unit, K, M, G or T: 64G; 0 for all memory of a node"),
    "switches": (r"[1-9]\d*(@[\d:-]+)?", "a number, and @ with the longest wait in minutes: 1, 1@60"),
    "mpi": (r"\w+", "a plugin that `srun --mpi=list` names, such as none or pmix"),
}
"""Pattern of a value by key, and the message for one that does not match."""
_OPTIONS = {"sbatch": "--mail-type=FAIL", "srun": "--export=ALL"}
"""Keys that hold options of the command of their name, with an example."""


def slurm_problems(slurm: Slurm) -> Iterator[Problem]:
    """What sbatch or the script's shell would read otherwise than it is meant."""
    yield from _characters(slurm)
    for command, example in _OPTIONS.items():
        for option in getattr(slurm, command):
            if not option.startswith("-"):
                text = f"must hold options of {command}, each with its value, such as {example}"
                yield Problem(f"topology.slurm.{command}", text, option)
    for key, (pattern, allowed) in _FORMATS.items():
        value = getattr(slurm, key)
        if value is not None and not re.fullmatch(pattern, str(value), re.ASCII):
            yield Problem(f"topology.slurm.{key}", f"must be {allowed}", value)
    yield from _containers(slurm)
    if slurm.time_min is not None and slurm.signal_s >= 60 * slurm.time_min:
        text = f"must be less than the {60 * slurm.time_min} seconds that topology.slurm.time_min gives the job"
        remedy = f"topology.slurm.signal_s={30 * slurm.time_min}"
        yield Problem("topology.slurm.signal_s", text, slurm.signal_s, remedy)


def _containers(slurm: Slurm) -> Iterator[Problem]:
    for mount in slurm.container_mounts:
        if "," in mount:
            yield Problem(
                "topology.slurm.container_mounts", "a mount cannot have a comma, which separates mounts", mount
            )
    for key in ("container_mounts", "container_workdir"):
        value = getattr(slurm, key)
        if value and slurm.container_image is None:
            text = "is of a container, and topology.slurm.container_image names none"
            yield Problem(f"topology.slurm.{key}", text, value, "topology.slurm.container_image=IMAGE")


def _characters(slurm: Slurm) -> Iterator[Problem]:
    for key, value in slurm.model_dump().items():
        for one in value if isinstance(value, list) else [value]:
            found = control_character(str(one))
            if found is not None:
                text = f"must be without control characters, and holds {found}"
                remedy = "one line of the shell for each item of the list" if key == "setup" else ""
                yield Problem(f"topology.slurm.{key}", text, ascii(one)[1:-1], remedy)
            elif "\\" in str(one) and key not in ("setup", "sbatch", "srun", "wrapper"):
                text = "must be without backslashes, which sbatch takes as escapes"
                yield Problem(f"topology.slurm.{key}", text, one)
