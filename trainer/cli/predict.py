"""`leyden predict`: classes of photographs as a table, and a contact sheet."""

import argparse
import csv
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.atomic_file import atomic_file
from ..base.errors import refuse
from ..base.paths import absolute, exists, shorten_path

if TYPE_CHECKING:
    from torch import Tensor

    from ..api.predictions import Prediction

_SUFFIXES = (".csv", ".json", ".parquet")


def predict(parsed: argparse.Namespace) -> int:
    from ..api.run import Run, prediction_settings
    from ..api.settings import keyed_words

    named, root, words = _divide_words(parsed.words)
    out = _output(parsed.out or "predictions.csv")
    given, overrides = keyed_words("predict", words)
    settings = prediction_settings(given)
    run = Run(named, *overrides, best=parsed.best)
    if not exists(root):
        raise refuse(
            "PHOTOS", "there is no such file or folder", root, "an image, a folder of images, a .zip or a .tar"
        )
    _ = run.config  # a mistake in the config does not wait for torch

    drawn: list[Tensor] = []

    def keep(images: "Tensor") -> None:
        drawn.extend(images[: max(0, settings["sheet"] - len(drawn))])

    found = run.predict_files(root, settings, seen=keep)
    _write(out, found)
    print(f"{run.predictor.checkpoint.name}, step {run.predictor.step}: {len(found)} photographs")
    print(f"{shorten_path(out)}: the {len(found[0].ranked) if found else 0} most probable classes of each")
    if drawn:
        from .contact_sheet import contact_sheet

        sheet = out.with_suffix(".png")
        with atomic_file(sheet, "wb") as file:
            contact_sheet(drawn, found).save(file, format="PNG")
        print(f"{shorten_path(sheet)}: {len(drawn)} of them, as the network sees them")
    return 0


def _divide_words(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """RUN, PHOTOS, and the other words."""
    named = [word for word in words if "=" not in word or exists(word)]
    if len(named) != 2:
        text = "needs a run and photographs" if len(named) < 2 else "takes one run, and one file, folder or archive"
        raise refuse("predict", text, " ".join(named) or ..., "leyden predict outputs/DAY/TIME PHOTOS")
    return named[0], named[1], [word for word in words if word not in named]


def _output(named: str) -> Path:
    out = absolute(named)
    if out.suffix.lower() not in _SUFFIXES or not out.parent.is_dir() or out.is_dir():
        text = "must be a .csv, .json or .parquet file in a folder that exists"
        raise refuse("--out", text, named, "--out predictions.csv")
    if out.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise refuse("--out", "needs pyarrow, which is not installed", named, "pip install 'leyden[parquet]'")
    return out


def _write(out: Path, found: "Sequence[Prediction]") -> None:
    rows = [_row(prediction) for prediction in found]
    try:
        match out.suffix.lower():
            case ".json":
                with atomic_file(out, encoding="utf-8") as file:
                    json.dump([_nest_keys(prediction) for prediction in found], file, indent=1, ensure_ascii=False)
            case ".parquet":
                _write_parquet(out, rows)
            case _:
                with atomic_file(out, encoding="utf-8", errors="backslashreplace", newline="") as file:
                    writer = csv.DictWriter(file, list(rows[0]) if rows else ["file"], lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(rows)
    except OSError as error:
        raise refuse("--out", f"cannot be written: {error}", str(out), "--out FILE.csv", executed=True) from error


def _write_parquet(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    with atomic_file(out, "wb") as file:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), file)


def _row(prediction: "Prediction") -> dict[str, Any]:
    """One row of the table: the file, then number, name and probability of each class."""
    row: dict[str, Any] = {"file": prediction.file}
    for place, each in enumerate(prediction.ranked, 1):
        row |= {f"class_{place}": each.number, f"name_{place}": each.name, f"probability_{place}": each.probability}
    return row


def _nest_keys(prediction: "Prediction") -> dict[str, Any]:
    ranked = [{"class": each.number, "name": each.name, "probability": each.probability} for each in prediction.ranked]
    return {"file": prediction.file, "predictions": ranked}
