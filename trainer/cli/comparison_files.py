"""A comparison of runs as CSV, as a picture, and as one HTML file that needs nothing else."""

import csv
import html
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..base.atomic_file import atomic_file, write_atomically
from ..base.errors import shorten_value
from ..runs.comparison import ComparedRun, Comparison

_MEASURES = ("samples_per_second", "bytes_a_step", "checkpoint_bytes", "steps")
_BARS = 40
"""Most runs of the picture."""


def _names(found: Comparison) -> list[str]:
    """Every logged metric, the one that ranks first."""
    return [found.metric, *sorted({name for run in found.runs for name in run.metrics} - {found.metric})]


def _row(found: Comparison, place: int, run: ComparedRun, metrics: list[str]) -> dict[str, Any]:
    """All that is known of a run: place, what differs in its config, metrics, speed, bytes."""
    row: dict[str, Any] = {"rank": place, "run": run.run, "state": run.state, "why": run.why.partition("\n")[0]}
    row |= {key: shorten_value(run.values[key], 200) if key in run.values else "" for key in found.keys}
    row |= {name: run.metrics.get(name) for name in metrics}
    return row | {found.metric: found.value(run)} | {name: getattr(run, name) for name in _MEASURES}


def _rows(found: Comparison) -> list[dict[str, Any]]:
    metrics = _names(found)
    return [_row(found, place, run, metrics) for place, run in enumerate(found.runs, 1)]


def write_csv(found: Comparison, file: Path) -> None:
    rows = _rows(found)
    with atomic_file(file, encoding="utf-8", errors="backslashreplace", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_png(found: Comparison, file: Path) -> None:
    """A bar for each of the best runs, from the smallest value drawn."""
    from PIL import Image, ImageDraw, ImageFont

    drawn = [(run, value) for run in found.runs if (value := found.value(run)) is not None][:_BARS]
    font = ImageFont.load_default(13)
    label, bar, line = 360, 420, 20
    picture = Image.new("RGB", (label + bar + 120, line * (len(drawn) + 2)), "white")
    draw = ImageDraw.Draw(picture)
    draw.text((8, 4), _as_text(f"{found.metric}, {found.mode}"), fill="black", font=font)
    values = [value for _, value in drawn]
    low, high = min(values, default=0.0), max(values, default=0.0)
    base = 0.0 if low >= 0 and low < 0.5 * high else low - 0.1 * (high - low)
    for number, (run, value) in enumerate(drawn):
        top = line * (number + 1) + 6
        width = bar if high == base else round(bar * (value - base) / (high - base))
        what = " ".join(f"{key.rpartition('.')[2]}={shorten_value(run.values.get(key), 24)}" for key in found.keys[:3])
        draw.text((8, top), _as_text(shorten_value(what or run.run, 54)), fill="black", font=font)
        draw.rectangle((label, top, label + max(width, 1), top + line - 6), fill=(70, 110, 180))
        draw.text((label + width + 6, top), f"{value:.6g}", fill="black", font=font)
    draw.text((8, picture.height - line + 2), f"bars begin at {base:.4g}", fill="grey", font=font)
    with atomic_file(file, "wb") as stream:
        picture.save(stream, format="PNG")


def _as_text(text: str) -> str:
    return "".join(char if char.isprintable() and not "\ud800" <= char <= "\udfff" else "?" for char in text)


def write_html(found: Comparison, file: Path) -> None:
    """A table that sorts by a click and filters by a text; whatever a run folder says is text in it."""
    rows = _rows(found)
    head = list(rows[0])
    # `<` would end the script: runs may be anybody's
    data = json.dumps([[row[name] for name in head] for row in rows]).replace("<", "\\u003c")
    head_text = "".join(f"<th>{html.escape(_as_text(name))}</th>" for name in head)
    title = html.escape(_as_text(f"{len(rows)} runs by {found.metric} ({found.mode})"))
    numbers = json.dumps([_is_numeric(rows, name) for name in head])
    page = _PAGE.replace("@TITLE", title).replace("@HEAD", head_text).replace("@NUMBERS", numbers)
    write_atomically(file, page.replace("@ROWS", data))


def _is_numeric(rows: list[dict[str, Any]], name: str) -> bool:
    return any(isinstance(row[name], int | float) for row in rows)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>@TITLE</title>
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<style>
body { font: 14px sans-serif; margin: 1.5em } table { border-collapse: collapse }
th, td { padding: .25em .6em; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap }
th { position: sticky; top: 0; background: #f4f4f4; cursor: pointer }
td.n { text-align: right; font-variant-numeric: tabular-nums }
input { margin: .8em 0; padding: .3em; width: 24em }
</style></head><body><h1>@TITLE</h1>
<input id="filter" placeholder="rows that contain this text"><table><thead><tr>@HEAD</tr></thead><tbody></tbody></table>
<script>
const rows = @ROWS, numeric = @NUMBERS;
const body = document.querySelector("tbody"), filter = document.getElementById("filter");
let column = 0, up = true;
function shown(value) {
  return value === null ? "" : typeof value === "number" ? String(+value.toPrecision(6)) : value;
}
function draw() {
  const text = filter.value.toLowerCase();
  const found = rows.filter(row => row.some(value => shown(value).toLowerCase().includes(text)));
  found.sort((a, b) => {
    const [x, y] = [a[column], b[column]];
    if (x === null || y === null) return (x === null) - (y === null);
    const both = typeof x === "number" && typeof y === "number";
    return (up ? 1 : -1) * (both ? x - y : String(x).localeCompare(String(y), undefined, {numeric: true}));
  });
  body.replaceChildren(...found.map(row => {
    const line = document.createElement("tr");
    row.forEach((value, number) => {
      const cell = document.createElement("td");
      cell.textContent = shown(value);
      if (numeric[number]) cell.className = "n";
      line.append(cell);
    });
    return line;
  }));
}
document.querySelectorAll("th").forEach((cell, number) => cell.onclick = () => {
  up = column === number ? !up : true; column = number; draw();
});
filter.oninput = draw;
draw();
</script></body></html>
"""

WRITERS: Mapping[str, Callable[[Comparison, Path], None]] = {
    ".csv": write_csv,
    ".png": write_png,
    ".html": write_html,
}
"""Writers by the suffix of the file."""
