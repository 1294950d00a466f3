"""Values that are written as in other languages, in YAML. No torch."""

import re
from typing import Any

_WORDS = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false",
          "none": "null", "nil": "null"}  # fmt: skip


def respell(value: Any) -> str:
    """The JSON that is probably meant by a value of a wrong type; "" if it is none of these.

    A word for true, false or null; a whole number as a fraction, 1e3 or 10.0; a shape as in a paper, 3x32x32.
    """
    text = str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if re.fullmatch(r"\d+(x\d+)+", text):
        return f"[{text.replace('x', ',')}]"
    return _WORDS.get(text, "")
