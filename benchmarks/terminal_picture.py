"""docs/images/terminal.svg: two commands, and what a terminal shows of them.

    python benchmarks/terminal_picture.py

The commands run in a temporary folder, whose name is left out of the picture. docs/images/tensorboard.png is a
photograph: `leyden view` on four runs of ten epochs with topology.devices_per_node=2 trainer.log_every_n_steps=10,
strategy=ddp, easgd, local_sgd, and ddp with strategy.compression=powersgd.
"""

import os
import shlex
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

from terminal import Terminal

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "terminal.svg"
COMMANDS = (
    "leyden topology.devices_per_node=2 strategy=ddp trainer.max_epochs=6 hydra.run.dir=outputs/ddp",
    "leyden trainer.max_epoch=3",
)
COLUMNS = 108
FORMAT = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""As rich's own, but for a font that it would have a reader fetch."""


def shown(command: str) -> str:
    """What stands on the screen when a command has ended."""
    words = [sys.executable, "-m", *shlex.split(command)]
    with Terminal(words, columns=COLUMNS, rows=60) as terminal:
        while terminal.read(120):
            pass
        return terminal.screen.text.replace(f"{Path.cwd()}/", "")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        os.chdir(folder)
        console = Console(record=True, width=COLUMNS, file=nowhere)
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            console.print(Text(shown(command)))
        console.save_svg(str(PICTURE), title="leyden", code_format=FORMAT, unique_id="t")
        os.chdir("/")


if __name__ == "__main__":
    main()
