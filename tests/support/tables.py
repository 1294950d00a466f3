"""Tables of cases of which CI has some, and the campaign all."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def thinned(table: Iterable[Any], *, in_ci: Sequence[Any]) -> list[Any]:
    """Parameters of a test, one for each case of `table`: a tuple has several arguments, anything else is one. Those
    that are not `in_ci` are the campaign's."""
    cases = list(table)
    assert all(case in cases for case in in_ci), f"in CI, and not in the table: {in_ci}, {cases}"
    return [_row(case, in_ci) for case in cases]


def _row(case: Any, in_ci: Sequence[Any]) -> Any:
    arguments = case if isinstance(case, tuple) else (case,)
    return pytest.param(*arguments, marks=[] if case in in_ci else pytest.mark.campaign)
