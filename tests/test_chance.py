"""The line at a run's end on an accuracy that is no better than chance."""

import pytest
from runs import TINY, Freeze

from leyden.trainer.config.schema import load
from leyden.trainer.data.contents.chance import not_learned
from leyden.trainer.entrypoints.start import start


@pytest.mark.parametrize(
    ("val", "train", "counts", "text"),
    [
        (0.333, 0.92, [4, 4, 4], "is no better than the largest class alone, 0.333 of 12 samples"),
        (0.60, 0.92, [4, 4, 4], "is no better than the largest class alone"),  # 1/3 + 2 x 0.136
        (0.61, 0.92, [4, 4, 4], None),
        (0.61, 0.92, [400, 400, 400], None),
        (0.10, None, [400, 400, 400], "is no better"),
        (0.40, 0.92, [400, 400, 400], "is under half of train/acc, 0.920"),
        (0.47, 0.92, None, None),
        (0.45, 0.92, None, "is under half"),
        (0.45, None, None, None),
        (None, 0.92, [4, 4], None),
    ],
)
def test_what_is_no_better_than_chance(
    freeze: Freeze, val: float | None, train: float | None, counts: list[int] | None, text: str | None
) -> None:
    metrics = {name: value for name, value in (("val/acc", val), ("train/acc", train)) if value is not None}
    split = None if counts is None else {"samples": sum(counts), "classes": dict(enumerate(counts))}
    found = not_learned(metrics, {"splits": {"val": split}}, load(freeze("run", *TINY)))
    assert (text is None) == (found is None)
    assert (text or "") in (found or "")
    assert found is None or "pretrained weights" in found


def test_a_run_says_it(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, "optimizer.lr=1e-9", "trainer.max_epochs=1")
    assert start(run_dir) == 0
    assert "val/acc" in next(line for line in (run_dir / "run.log").read_text().splitlines() if "may help" in line)
