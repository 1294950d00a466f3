"""Several values where one is wanted: a sweep without -m, a list cut by spaces, one more file of a group."""

import re
from collections.abc import Sequence

from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import OmegaConf

from ...base.errors import ConfigError, refuse
from ..known_names import find_equivalent
from ..validation import dotted_keys, schema_keys, unknown_key
from .remedies import as_command
from .request import CompositionRequest, parse_override

GROUPS_OF_SEVERAL = ("callbacks", "logger", "augment")
"""Groups of which a run takes several files: callbacks=[default,ema]."""
_GROUPS_OF_ONE = ("dataset", "model", "task", "strategy", "topology", "optimizer", "schedule")


def join_words(typed: str, request: CompositionRequest) -> list[str]:
    """The overrides if the words after one of them belong to its value, as in `lr=0.1, 0.01`; else none."""
    words = request.overrides
    index = end = words.index(typed) if typed in words else len(words)
    while end + 1 < len(words) and re.search(r"[,\[{]$", words[end]) and "=" not in words[end + 1]:
        end += 1
    joined = "".join(words[index : end + 1])
    if end == index or parse_override(joined) is None:
        return []
    return [*words[:index], joined, *words[end + 1 :]]


def several_values(match: re.Match[str], request: CompositionRequest) -> ConfigError:
    """`lr=0.1,0.01` without -m."""
    typed = match[1]
    key, _, value = typed.partition("=")
    values = request.values_without(key)
    is_ours = key in {*schema_keys(), *dotted_keys(values), *request.groups()}
    as_list = find_equivalent(key.rpartition(".")[2], f"[{value}]")
    if not is_ours and as_list is not None and "=" in as_list.remedy and value not in as_list.remedy:
        return refuse(key, f"is called {as_list.key} here", value, as_list.remedy, f"override '{typed}'")
    meant = key if is_ours else unknown_key(key, value.split(",")[0], values).remedy.partition("=")[0] or key
    swept = f"{meant}={value}"
    remedy = as_command([swept if override == typed else override for override in request.overrides], True)
    if _takes_list(key, value, request):
        remedy = f"{key}=[{value}] or {remedy}"
    return refuse(key, "several values are a sweep, which needs -m", value, remedy, f"override '{typed}'")


def refuse_several(override: Override, overrides: Sequence[str]) -> None:
    """Refuse `model=[lenet5,mlp]`: Hydra would merge the two.

    Raises:
        ConfigError: it is that.
    """
    group, value = override.key_or_group, override.value()
    if group in _GROUPS_OF_ONE and isinstance(value, list) and len(value) > 1:
        swept = f"{group}={','.join(map(str, value))}"
        remedy = as_command([swept if each == override.input_line else each for each in overrides], True)
        text = "a run has one; several are a sweep, which needs -m"
        raise refuse(group, text, value, remedy, f"override '{override.input_line}'")


def _takes_list(key: str, value: str, request: CompositionRequest) -> bool:
    """Whether several values of a key may be meant as one list: its value now is one, or it is a group of several."""
    return key in GROUPS_OF_SEVERAL or OmegaConf.is_list(request.value_without(key))


def one_more(match: re.Match[str], request: CompositionRequest) -> ConfigError:
    """`+callbacks=ema`: one file more of a group that has one."""
    group = match[1]
    typed = next((o for o in request.overrides if re.match(rf"\+{re.escape(group)}(@[\w.]*)?=", o)), "")
    name = typed.partition("=")[2]
    others = [override for override in request.overrides if override != typed]
    composed = request.loader.load_configuration(request.config_name, others, RunMode.MULTIRUN)
    now = str(composed.hydra.runtime.choices.get(group)).strip("[]").replace(" ", "")
    remedy = f"{group}=[{now},{name.strip('[]')}]" if group in GROUPS_OF_SEVERAL else f"{group}={name}"
    text = f"+ adds no file to a group, and {group} is {now} now"
    return refuse(group, text, name, remedy if typed else "", f"override '{typed}'" if typed else "")
