"""Text from other processes without what a terminal would obey."""

import re

# C0 but tab and newline, DEL, C1; and what reorders the text around it
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text without control characters, of which tab and newline are kept."""
    return _UNPRINTABLE.sub("", text)
