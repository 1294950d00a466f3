"""What an entry of the hostile corpus is, and the folder that its command runs in."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measured_command import Runner
from PIL import Image
from runs import TINY

CANARY = "canary"
"""File in the command's folder, and beginning of the names of others, that code of an entry would create."""
QUIET = (*TINY, "trainer.max_steps=1", "trainer.enable_progress_bar=false", "logger=none")
STRANGER = 54321
"""User id of whoever has made a stranger's run."""

Make = Callable[[Path], None]


def nothing(here: Path) -> None:
    """The words of the command are hostile, no file is."""


@dataclass(frozen=True)
class Entry:
    """A hostile file, config or message, and the command that meets it."""

    door: str
    name: str
    words: Sequence[str]
    """Of the command `leyden`, in the folder that `make` has changed."""
    says: Sequence[str]
    """Texts that its output must hold: the key, file or message at fault."""
    make: Make = nothing
    codes: Sequence[int] = (2,)
    """Documented exit codes."""
    harmless: str = "train"
    """Its neighbour in HARMLESS."""


TRAIN = (*QUIET, "hydra.run.dir=out")
IMAGES = (
    "dataset=image_folder",
    "dataset.root=images",
    "dataset.image_size=8",
    "model=mlp",
    "model.hidden=[8]",
    "batch_size=4",
    "trainer.max_epochs=1",
    "trainer.enable_progress_bar=false",
    "logger=none",
    "dataset.num_workers=0",
    "hydra.run.dir=out",
)
CIFAR = (
    "dataset=cifar10",
    "dataset.root=cifar",
    "model=mlp",
    "model.hidden=[8]",
    "trainer.max_steps=1",
    "trainer.enable_progress_bar=false",
    "logger=none",
    "hydra.run.dir=out",
)
HARMLESS: Mapping[str, Sequence[str]] = {
    "train": TRAIN,
    "sweep": ("-m", "seed=1", *QUIET, "hydra.sweep.dir=out"),
    "eval": ("eval", "run"),
    "resume": ("resume", "run", "trainer.max_steps=32"),
    "status": ("status", "."),
    "images": IMAGES,
    "cifar": CIFAR,
    "message": ("message", "harmless"),
}
"""Commands on harmless input, whose CPU time and memory the entries' are compared with."""


def trained_run(folder: Path, runner: Runner) -> Path:
    """A finished run of Leyden's own classes, in a folder that does not move."""
    words = [
        *TINY,
        "trainer.max_steps=30",
        "callbacks.checkpoint.every_n_steps=10",
        "callbacks.checkpoint.keep_last=5",
        "trainer.enable_progress_bar=false",
        "hydra.run.dir=trained",
    ]
    made = runner(words, folder)
    assert made.code == 0, made.output
    return folder / "trained"


def harmless_folder(here: Path, trained: Path) -> None:
    """What every command finds: the run `run`, the data sets `images` and `cifar`, and code that touches the canary."""
    here.mkdir()
    shutil.copytree(trained, here / "run")
    pixels = np.random.default_rng(0).integers(0, 255, (8, 12, 12, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        folder = here / "images" / "train" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.png")
    (here / "cifar").mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (here / "cifar" / f"{name}.bin").write_bytes(bytes(3073 * 8))
    for name in ("evil.py", "hubconf.py", "run/torchvision.py", "run/evil.py", "run/sitecustomize.py"):
        (here / name).write_text(f"import os\nos.system('touch {CANARY}')\n")
    (here / "conf").mkdir()


def canaries(here: Path) -> list[str]:
    """Files that only code of an entry creates."""
    return [path.name for path in (*here.rglob(f"{CANARY}*"), *here.parent.glob(f"{CANARY}*"))]
