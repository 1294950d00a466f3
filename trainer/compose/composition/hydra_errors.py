"""Errors of Hydra translated to Leyden's: key, value, allowed values, place where it was set, remedy."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ...base import limited_yaml
from ...base.errors import ConfigError, Problem, join_names, nearest, refuse
from ...base.open_files import open_file_error
from ...base.paths import exists, shorten_path
from ..hydra_compat import yaml_file
from ..known_names import find_choice, find_equivalent, photographs_at, timm_choice
from ..validation import unknown_key
from .remedies import as_command
from .request import CompositionRequest, parse_override, spellings
from .several_values import join_words, one_more, several_values

_LONG = 500
"""Characters of an override that no person types."""
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
"""A class in a module, as `torch.optim.NAdam`."""


def explain_error(error: Exception, request: CompositionRequest) -> ConfigError:
    """The error to show in place of Hydra's.

    Raises:
        SystemFailure: it is none of the config's: there are too many open files.
    """
    if isinstance(error, ConfigError):
        return error
    lack = open_file_error(error)
    if lack is not None:
        raise lack from error
    if isinstance(error, OverrideParseException):
        return _unreadable_override(error, request)
    if isinstance(error, MissingConfigException):
        return _missing_choice(error, request)
    if isinstance(error, yaml.MarkedYAMLError):
        return _yaml_syntax(error)
    if isinstance(error, RecursionError):
        return _leads_back(request)
    if isinstance(error, ValueError) and (unreadable := _unreadable_number(request)) is not None:
        return unreadable
    for pattern, explain in _BY_TEXT.items():
        match = re.search(pattern, str(error), re.DOTALL)
        if match:
            return explain(match, request)
    return _other(error, request)


def _unreadable_override(error: OverrideParseException, request: CompositionRequest) -> ConfigError:
    typed = error.override
    key, equals, value = typed.partition("=")
    joined = join_words(typed, request)
    if joined:
        sweeps = any(o.is_sweep_override() for o in OverridesParser.create().parse_overrides(joined))
        text = "the value is cut off by a space: what the shell divides are two words"
        words = " ".join(word for word in request.overrides if word not in joined)
        return refuse(key.lstrip("+"), text, value, as_command(joined, sweeps), f"override '{words}'")
    if not equals:
        remedy = photographs_at(typed) if exists(typed) else f"{typed}=VALUE"
        return refuse(typed, "is neither a verb nor key=value", remedy=remedy)
    if not re.fullmatch(r"[+~]*[\w./@:$-]+", key):
        return refuse(typed, f"the part before = is not a key: {key!r}", remedy="key=VALUE, without spaces")
    text = (
        "the value cannot be read: brackets must match, commas stand between values, and text with any of "
        "= ~ { } ( ) , or quotes must be quoted"
    )
    return refuse(key.lstrip("+"), text, value, _readable(typed, request), f"override '{typed}'")


def _readable(typed: str, request: CompositionRequest) -> str:
    """The remedy for an override that Hydra cannot parse; "" if what is meant is not clear."""
    key, _, value = typed.partition("=")
    name = key.lstrip("+")
    now = request.value_without(name)
    is_text = (now is None or isinstance(now, str)) and name not in request.groups()
    meant = f"{key}={_repair(value, OmegaConf.is_list(now))}"
    if meant == typed or " " in meant or (is_text and exists(value)) or not (parsed := parse_override(meant)):
        quoted = value.replace("'", "\\'")
        return f"\"{key}='{quoted}'\"" if is_text else ""
    if parsed.is_sweep_override():
        return as_command([meant if each == typed else each for each in request.overrides], is_sweep=True)
    return meant


def _repair(value: str, is_list: bool) -> str:
    """What is probably meant by a value with commas, brackets or signs too many or too few."""
    bare = re.sub(r",\s+", ",", value).strip(",;= ")
    bare = re.sub(r",+(?=[,\])}])|(?<=[\[({]),+", "", bare)
    if re.fullmatch(r"\([^()]*\)", bare):
        return f"[{bare[1:-1]}]" if is_list else bare[1:-1]
    return _balance(bare) if bare[:1] in ("[", "{") else bare


def _balance(value: str) -> str:
    """The value without the brackets that close nothing, and with those that it leaves open closed."""
    kept = left = ""
    for letter in value:
        if letter in "[{(":
            left = "]})"["[{(".index(letter)] + left
        elif left[:1] == letter:
            left = left[1:]
        elif letter in "]})":
            continue
        kept += letter
    return kept + left


def _leads_back(request: CompositionRequest) -> ConfigError:
    """A defaults list that contains itself, or an override of thousands of brackets."""
    longest = max(request.overrides, key=len, default="")
    if len(longest) > _LONG:
        key, _, value = longest.partition("=")
        return refuse(key.lstrip("+"), "the value is nested too deeply", value)
    groups = request.groups()
    chosen = [f"'{override}'" for override in request.overrides if request.key_of(override) in groups]
    where = f"one of {join_names(chosen)}" if chosen else ""
    return refuse("defaults", "the defaults list of a file leads back to itself", where=where)


def _unreadable_number(request: CompositionRequest) -> ConfigError | None:
    """The override whose number has more digits than Python reads, if that is what is wrong."""
    for override in request.overrides:
        key, _, value = override.partition("=")
        try:
            OverridesParser.create().parse_override(override)
        except HydraException:
            continue
        except ValueError:
            return refuse(key.lstrip("+"), "a number has too many digits", value, where="an override")
    return None


def _missing_choice(error: MissingConfigException, request: CompositionRequest) -> ConfigError:
    path = error.missing_cfg_file or ""
    group, name = _group_and_name(path, request)
    if not group:
        return _missing_root(name, request)
    options = list(error.options or request.loader.get_group_options(group))
    if not options:
        return refuse(group, f"there is no config group {group!r}", name, where=_choice_place(group, name, request))
    where = _choice_place(group, name, request)
    problem = _no_such_choice(group, name, options, where).problems[0]
    key, _, meant = problem.remedy.partition("=")
    if "[" in where and key == group:
        typed = where.removeprefix("override ").strip("'")
        problem = replace(problem, remedy=_in_list(typed, name, meant))
    return ConfigError(problem)


def _group_and_name(path: str, request: CompositionRequest) -> tuple[str, str]:
    """Group and choice of a config path; the choice may be a path itself, as in `data=photos/train`."""
    groups = [o.key_or_group for o in request.parse_request()]
    groups = ["dataset" if group == "data" else group for group in groups]
    inside = [group for group in groups if path.startswith(f"{group}/") and group in request.groups()]
    if inside and not any(path.startswith(f"{group}/") for group in request.groups() if "/" in group):
        return inside[-1], path[len(inside[-1]) + 1 :]
    group, _, name = path.rpartition("/")
    return group, name


def _in_list(typed: str, name: str, meant: str) -> str:
    """The override of a list of choices, such as `callbacks=[default,emma]`, with one choice corrected."""
    group, _, listed_names = typed.partition("=")
    names = [item.strip() for item in listed_names.strip("[]").split(",")]
    in_place = [own for item in names for own in (meant.strip("[]").split(",") if item == name else [item])]
    return f"{group}=[{','.join(dict.fromkeys(in_place))}]"


def _no_such_choice(group: str, name: str, options: list[str], where: str) -> ConfigError:
    elsewhere = find_choice(group, name) or (timm_choice(name, options) if group == "model" else "")
    close = None if elsewhere else nearest(name, options)
    meant = f"; did you mean {close}?" if close else ""
    text = f"there is no such choice{meant}\n{group} can be {join_names(options)}"
    text += "; model=timm is any network of timm, with leyden[timm]" if group == "model" else ""
    remedy = elsewhere or (f"{group}={close}" if close else "")
    if not remedy and _IMPORT_PATH.fullmatch(name):
        node = f"+{group}.own" if group in ("callbacks", "logger") else group
        remedy = f"{node}._target_={name}"
    if group == "dataset" and not remedy and exists(name):
        remedy = photographs_at(name)
    return refuse(group, text, name, remedy, where)


def _missing_root(name: str, request: CompositionRequest) -> ConfigError:
    options = [option for option in request.loader.get_group_options("") if not option.startswith("_")]
    close = nearest(name, options)
    remedy = (
        f"--config-name {close}" if close else f"--config-dir FOLDER --config-name {name}, with {name}.yaml in FOLDER"
    )
    if not close and exists(f"{name}.yaml"):
        remedy = f"--config-dir . --config-name {name}"
    return refuse("--config-name", f"there is no {name}.yaml to start from", name, remedy)


def _choice_place(group: str, name: str, request: CompositionRequest) -> str:
    """The override or the line of a defaults list that makes a choice."""
    for override in reversed(request.parse_request()):
        if override.key_or_group in spellings(group) and name in _names(override.value()):
            return f"override '{override.input_line}'"
    roots = [f"{o.key_or_group}/{n}" for o in request.parse_request() for n in _names(o.value())]
    for config_path in [*roots, request.config_name or ""]:
        place = _line_of_choice(config_path, group, name, request)
        if place:
            return place
    return ""


def _names(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _line_of_choice(config_path: str, group: str, name: str, request: CompositionRequest) -> str:
    file = yaml_file(request.loader.repository, config_path)
    root = limited_yaml.compose(limited_yaml.read(file)) if file else None
    if file is None or not isinstance(root, yaml.MappingNode):
        return ""
    for key, items in root.value:
        for item in items.value if key.value == "defaults" and isinstance(items, yaml.SequenceNode) else []:
            for chosen, value in item.value if isinstance(item, yaml.MappingNode) else []:
                same_group = chosen.value.split()[-1].split("@")[0].lstrip("/") == group
                if same_group and name in _scalars(value):
                    return f"{shorten_path(file)}:{chosen.start_mark.line + 1}"
    return ""


def _scalars(node: yaml.Node) -> Iterable[str]:
    return [item.value for item in node.value] if isinstance(node, yaml.SequenceNode) else [node.value]


def _yaml_syntax(error: yaml.MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    where = f"{shorten_path(Path(mark.name))}:{mark.line + 1}" if mark else ""
    message = " ".join(part for part in (error.context, error.problem) if part)
    key = Path(mark.name).name if mark else "a YAML file"
    remedy = "check the indentation, colons and brackets there"
    return refuse(key, f"is not valid YAML: {message}", where=where, remedy=remedy)


def _unknown(match: re.Match[str], request: CompositionRequest) -> ConfigError:
    key = match[1]
    typed = next((o for o in request.parse_request() if o.get_key_element().lstrip("+") in spellings(key)), None)
    value = typed.value() if typed is not None else ...
    where = request.override_of(key)
    parent = key.rpartition(".")[0]
    if key in request.groups():
        return _no_such_choice(key, str(value), request.loader.get_group_options(key), where)
    if "/" in key or "@" in key:
        return _unknown_group(key, value, request)
    if key.startswith("hydra."):
        return ConfigError(_unknown_of_hydra(key, parent, value, request, where))
    return ConfigError(unknown_key(key, value, request.values_without(key))).with_places(lambda _: where)


def _unknown_group(key: str, value: Any, request: CompositionRequest) -> ConfigError:
    group = key.split("@")[0]
    close = nearest(group, request.groups()) or nearest(group.rpartition("/")[2], request.groups())
    text = "there is no such config group" + (f"; did you mean {close}?" if close else "")
    return refuse(key, f"{text}\nthe groups are {join_names(request.groups())}", value, where=request.override_of(key))


def _unknown_of_hydra(key: str, parent: str, value: Any, request: CompositionRequest, where: str) -> Problem:
    elsewhere = find_equivalent(key.rpartition(".")[2], None)
    if parent == "hydra.sweeper" and elsewhere is not None and elsewhere.why:
        return Problem(key, elsewhere.why, value, where=where)
    chosen = [override for override in request.overrides if override.startswith("hydra/")]
    plain = request.loader.load_configuration(request.config_name, chosen, RunMode.RUN)
    node = OmegaConf.select(plain, parent, throw_on_missing=False)
    names = [str(name) for name in node] if OmegaConf.is_dict(node) else []
    close = nearest(key.rpartition(".")[2], names)
    hint = f"did you mean {parent}.{close}?" if close else f"{parent} has {join_names(names) or 'no keys'}"
    return Problem(key, f"there is no such key; {hint}", value, f"{parent}.{close}={value}" if close else "", where)


def _group_value(match: re.Match[str], request: CompositionRequest) -> ConfigError:
    for override in request.parse_request():
        group, value = override.key_or_group, override.value()
        group = "dataset" if group == "data" else group
        if group in request.groups() and not isinstance(value, str | list | dict) and value is not None:
            options = request.loader.get_group_options(group)
            return _no_such_choice(group, str(value), options, f"override '{override.input_line}'")
    return refuse("defaults", match[0])


def _already_there(match: re.Match[str], request: CompositionRequest) -> ConfigError:
    key = match[1]
    where = request.override_of(key)
    typed = where.removeprefix("override '+").removesuffix("'")
    return refuse(key, "is there already; + is only for new arguments", remedy=typed, where=where)


def _not_there(match: re.Match[str], request: CompositionRequest) -> ConfigError:
    key = match[1]
    problem = unknown_key(key)
    return refuse(key, f"cannot be taken away with ~: {problem.text}", where=request.override_of(key))


def _bad_override_value(match: re.Match[str], request: CompositionRequest) -> ConfigError:
    key, _, value = match[1].partition("=")
    listed = f"{key}=[{value}]" if value.startswith("{") else ""
    return refuse(key.lstrip("+"), "the value cannot be put there", value, listed, where=f"override '{match[1]}'")


def _must_choose(match: re.Match[str], request: CompositionRequest) -> ConfigError:
    group = match[1]
    options = request.loader.get_group_options(group.split("@")[0])
    return refuse(group, f"must be chosen; it can be {join_names(options)}", remedy=f"{group}={options[0]}")


def _not_in_defaults(match: re.Match[str], request: CompositionRequest) -> ConfigError:
    inside, key, meant = match[1], match[2], match[3]
    where = f"the defaults list of {inside}.yaml" if inside else request.override_of(key)
    if key.split("@")[0] not in request.groups():
        return _unknown_group(key, ..., request).with_places(lambda _: where)
    text = "this group is not part of the config" + (f"; did you mean {meant}?" if meant else "")
    return refuse(key, text, remedy=f"{meant}=NAME" if meant else f"+{key}=NAME", where=where)


def _swept_hydra(match: re.Match[str], request: CompositionRequest) -> ConfigError:
    key, _, value = match[1].partition("=")
    return refuse(
        key, "is Hydra's own key: all trials of a sweep have one value", value, where=f"override '{match[1]}'"
    )


_BY_TEXT = {
    r"Sweeping over Hydra's configuration is not supported : '([^\n]+)'": _swept_hydra,
    r"Could not override '([^']+)'\.\nTo append to your config": _unknown,
    r"(?:In '([^']+)': )?Could not override '([^']+)'\.(?:\nDid you mean to override ([^\n]+)\?)?": _not_in_defaults,
    r"Ambiguous value for argument '([^\n]+)'": several_values,
    r"Sweep parameters '([^\n]+)' requires": several_values,
    r"Config group override must be a string": _group_value,
    r"Multiple values for ([^\n]+)\. To override a value use": one_more,
    r"([\w/]+) appears more than once in the final defaults list": one_more,
    r"An item is already at '([^']+)'": _already_there,
    r"Could not delete from config\. '([^']+)' does not exist": _not_there,
    r"Could not delete '([^']+)'": _not_there,
    r"Error merging override (.+)": _bad_override_value,
    r"You must specify '([^']+)'": _must_choose,
}


def _other(error: Exception, request: CompositionRequest) -> ConfigError:
    """Hydra's own message, or that of its cause."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else None
    message = str(error).strip() or str(cause or type(error).__name__)
    text = "\n".join(
        line for line in message.splitlines() if not re.match(r"\s*(full_key|object_type|reference)", line)
    )
    kind = "" if isinstance(error, HydraException) else f"{type(error).__name__}: "
    return refuse(request.config_name or "config", f"{kind}{text}")
