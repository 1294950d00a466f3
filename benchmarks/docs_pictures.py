"""Pictures of the documentation that runs draw themselves: trains small runs, and writes them into docs/images.

    python benchmarks/docs_pictures.py [NAME ...]       # inspect, autoencoder, pipeline, butterfly, spatial, links

TensorBoard's own pages are made by `benchmarks/dashboards.py`.
"""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from dashboards import write
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

_GAP = 12


def main(names: list[str]) -> None:
    for name in names or _MADE:
        with TemporaryDirectory() as place:
            for file, picture in _MADE[name](Path(place)).items():
                write(picture, file)


def _leyden(place: Path, *words: str) -> None:
    quiet = [] if words[0] in ("inspect", "doctor") else ["trainer.enable_progress_bar=false"]
    # the doctor's exit code 1 says that something is slow, as on a machine with other work
    subprocess.run([sys.executable, "-m", "leyden", *words, *quiet], cwd=place, check=words[0] != "doctor")


def _inspected(place: Path) -> dict[str, Image.Image]:
    """What a small network has learned of the digits."""
    _leyden(place, "dataset=digits", "model=lenet5", "optimizer.lr=0.05", "trainer.max_epochs=25", "hydra.run.dir=run")
    _leyden(place, "inspect", "run", "maps=4", "explained=6")
    folder = place / "run" / "inspect"
    features = sorted(folder.glob("features_*.png"))
    return {
        "inspect_features.png": _stacked([folder / "filters.png", *features]),
        "inspect_evidence.png": _beside([folder / "occlusion.png", folder / "class_activation.png"]),
        "inspect_mistakes.png": Image.open(folder / "mistakes.png"),
    }


def _autoencoder(place: Path) -> dict[str, Image.Image]:
    _leyden(
        place, "experiment=cots_1b_small", "topology.devices_per_node=1", "strategy.grid=[1,1]", "hydra.run.dir=run"
    )
    _leyden(place, "inspect", "run", "maps=4", "explained=6")
    folder = place / "run" / "inspect"
    return {"inspect_autoencoder.png": _stacked(sorted(folder.glob("*.png")))}


def _pipeline(place: Path) -> dict[str, Image.Image]:
    _leyden(
        place, "-m", "dataset=digits", "dataset.image_size=16", "augment=none", "hydra/launcher=pipeline",
        "strategy=single", "model=mlp", "optimizer.lr=0.05,0.02,0.01,0.005", "topology.devices_per_node=2",
        "trainer.max_epochs=2", "hydra.sweep.dir=sweep",
    )  # fmt: skip
    return {"pipeline_schedule.png": Image.open(place / "sweep" / "pipeline" / "schedule.png")}


def _butterfly(place: Path) -> dict[str, Image.Image]:
    _leyden(place, "experiment=deep_image_dp32_small", "trainer.max_steps=12", "hydra.run.dir=run")
    return {"butterfly_exchange.png": _logged(place / "run", "butterfly/exchange")}


def _spatial(place: Path) -> dict[str, Image.Image]:
    _leyden(
        place, "experiment=cots_11b_small", "trainer.max_steps=3", "topology.devices_per_node=6", "strategy.grid=[2,3]",
        "hydra.run.dir=run",
    )  # fmt: skip
    return {"spatial_tiling.png": _logged(place / "run", "spatial/tiling")}


def _links(place: Path) -> dict[str, Image.Image]:
    _leyden(place, "doctor", "topology.devices_per_node=4", "hydra.run.dir=run")
    return {"link_rates.png": Image.open(place / "run" / "links.png")}


_MADE: dict[str, Callable[[Path], dict[str, Image.Image]]] = {
    "inspect": _inspected, "autoencoder": _autoencoder, "pipeline": _pipeline, "butterfly": _butterfly,
    "spatial": _spatial, "links": _links,
}  # fmt: skip


def _logged(run: Path, tag: str) -> Image.Image:
    """The newest picture of a name in a run's event files."""
    events = EventAccumulator(str(run))
    events.Reload()
    return Image.open(io.BytesIO(events.Images(tag)[-1].encoded_image_string))


def _stacked(files: list[Path]) -> Image.Image:
    parts = [Image.open(file).convert("RGB") for file in files]
    made = Image.new(
        "RGB", (max(p.width for p in parts), sum(p.height for p in parts) + _GAP * (len(parts) - 1)), "white"
    )
    top = 0
    for part in parts:
        made.paste(part, (0, top))
        top += part.height + _GAP
    return made


def _beside(files: list[Path]) -> Image.Image:
    parts = [Image.open(file).convert("RGB") for file in files]
    made = Image.new(
        "RGB", (sum(p.width for p in parts) + _GAP * (len(parts) - 1), max(p.height for p in parts)), "white"
    )
    left = 0
    for part in parts:
        made.paste(part, (left, 0))
        left += part.width + _GAP
    return made


if __name__ == "__main__":
    main(sys.argv[1:])
