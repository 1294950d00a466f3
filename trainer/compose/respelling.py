"""Values that are written as in other languages, in YAML. No torch."""

import re
from typing import Any

from .known_names import switch

_WORDS = {**switch("true", "false"), "none": "null", "nil": "null"}


def respell(value: Any) -> str:
    """The JSON that is probably meant by a value of a wrong type; "" if it is none of these.

    A word for true, false or null; a whole number as a fraction, 1e3 or 10.0; a shape as in a paper, 3x32x32.
    """
    text = str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if re.fullmatch(r"\d+(x\d+)+", text):
        return f"[{text.replace('x', ',')}]"
    found = _WORDS.get(text, "")
    return "" if found == text else found
