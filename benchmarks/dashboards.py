"""TensorBoard's pages of runs as `leyden view` opens them, in headless Chromium: is anything empty; pictures.

    python benchmarks/dashboards.py        # trains a sweep, and writes docs/images/tensorboard*.png

`tests/integration/test_dashboards.py` looks at the same pages of a smaller sweep.
"""

import io
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from chromium import Page, chromium
from PIL import Image

PICTURES = Path(__file__).parents[1] / "docs" / "images"
HEIGHT = 2000
"""Of a window in which every chart is looked at: TensorBoard draws what is seen."""
_SETTLED_S = 1.0
_COLOURED = 40
"""Least pixels of a line in a chart, which is grey and black otherwise."""


@dataclass(frozen=True)
class Dashboard:
    """A page of TensorBoard.

    Args:
        hash: its name in the address; "": the page that opens first.
        charts: selector of the elements that are to show something.
        ready: JavaScript, true when all of them are there.
    """

    hash: str
    charts: str
    ready: str


_CHARTS = "vz-line-chart2"
DASHBOARDS = {
    "start": Dashboard("", "metrics-pinned-view line-chart", "all('metrics-pinned-view line-chart').length >= 4"),
    "scalars": Dashboard("scalars", _CHARTS, f"all('{_CHARTS}').length"),
    "charts": Dashboard("custom_scalars", _CHARTS, f"all('{_CHARTS}').length >= 9"),
    "images": Dashboard("images", "img", "all('img').some(image => image.naturalWidth)"),
    "hparams": Dashboard(
        "hparams",
        "vaadin-grid-cell-content",
        "all('vaadin-grid-cell-content').some(cell => /^0\\.\\d/.test(cell.innerText))",
    ),
}


@contextmanager
def viewed(folder: Path) -> Iterator[str]:
    """The address of `leyden view FOLDER`, as it prints it."""
    command = [sys.executable, "-m", "leyden", "view", folder.name, "--port", "0"]
    process = subprocess.Popen(command, cwd=folder.parent, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        yield next(found[0] for line in process.stderr if (found := re.findall(r"http://localhost:\d+", line)))
    finally:
        process.terminate()
        process.communicate()


def opened(page: Page, address: str, dashboard: Dashboard) -> None:
    """Open a dashboard, and wait until it is drawn."""
    page.open(f"{address}/?page={dashboard.hash}#{dashboard.hash}" if dashboard.hash else f"{address}/")
    page.wait_for(dashboard.ready)
    before = b""
    while (now := page.picture()) != before:
        before = now
        time.sleep(_SETTLED_S)


def coloured(page: Page, selector: str) -> list[int]:
    """Coloured pixels of each element in the window."""
    boxes = page.value(
        f"all('{selector}').map(e => e.getBoundingClientRect()).map(r => [r.left, r.top, r.right, r.bottom])"
    )
    picture = Image.open(io.BytesIO(page.picture())).convert("HSV").getchannel("S")
    counts = []
    for left, top, right, bottom in boxes:
        if top >= 0 and bottom <= picture.height and right > left:
            shown = picture.crop((round(left), round(top), round(right), round(bottom))).histogram()
            counts.append(sum(shown[60:]))
    return counts


def empty(page: Page, dashboard: Dashboard) -> list[int]:
    """Positions of the charts in which nothing is drawn, and of images without pixels."""
    if dashboard.charts == "img":
        counts = page.value("all('img').map(image => image.naturalWidth)")
    else:
        counts = coloured(page, dashboard.charts)
    return [number for number, count in enumerate(counts) if count < _COLOURED] if counts else [-1]


def write(picture: Image.Image, name: str) -> None:
    """Write a picture of the documentation."""
    picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(PICTURES / name, optimize=True)
    print(PICTURES / name, (PICTURES / name).stat().st_size)


_SWEEP = (
    "dataset=digits", "augment=none", "model=lenet5", "topology.devices_per_node=2", "strategy=ddp,local_sgd,easgd",
    "optimizer.lr=0.05,0.02", "trainer.max_epochs=6", "trainer.log_every_n_steps=6", "hydra.sweep.dir=sweep",
)  # fmt: skip
_SHOWN = (
    ("sweep", "start", "tensorboard.png", 1000),
    ("sweep", "hparams", "tensorboard_hparams.png", 420),
    ("sweep/0", "charts", "tensorboard_charts.png", 1580),
)
"""Folder, dashboard, file, and height of the window."""


def main() -> None:
    with TemporaryDirectory() as place:
        subprocess.run([sys.executable, "-m", "leyden", "-m", *_SWEEP], cwd=place, check=True)
        for folder, name, file, height in _SHOWN:
            with viewed(Path(place) / folder) as address, chromium() as page:
                page.size(1280, height)
                opened(page, address, DASHBOARDS[name])
                write(Image.open(io.BytesIO(page.picture())), file)


if __name__ == "__main__":
    main()
