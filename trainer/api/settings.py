"""Keys of the verbs that use trained runs: conf/predict.yaml, conf/inspect.yaml."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..base.errors import refuse
from ..compose.reference.yaml_library import Library


def verb_settings(verb: str, given: Mapping[str, Any], may_be_zero: Collection[str]) -> dict[str, Any]:
    """Values of all keys of conf/VERB.yaml, which are whole numbers but for `_target_`.

    Raises:
        ConfigError: a given value is no whole number, or too small.
    """
    values = {name: key.value for name, key in Library().file(verb).keys.items()}
    for name, value in given.items():
        least = 0 if name in may_be_zero else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise refuse(name, f"must be a whole number of at least {least}", value, f"{name}={values[name]}")
    return {**values, **given}


def keyed_words(verb: str, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Values of the verb's own keys, and the other words, which are overrides of the run's config."""
    own = {name for name in Library().file(verb).keys if name != "_target_"}
    pairs = [(word, *word.partition("=")[::2]) for word in words]
    given = {key: _whole(value) for _, key, value in pairs if key in own}
    return given, [word for word, key, _ in pairs if key not in own]


def _whole(text: str) -> Any:
    return int(text) if text.isdecimal() and len(text) < 10 else text
