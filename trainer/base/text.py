"""Characters that do not belong in one line of text."""

import unicodedata

_CONTROL = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories: control characters, bytes of a path that are no UTF-8, line and paragraph separators."""


def control_character(text: str) -> str | None:
    r"""The first control character or line separator of a text, escaped such as \n; None without one."""
    return next((ascii(one)[1:-1] for one in text if unicodedata.category(one) in _CONTROL), None)
