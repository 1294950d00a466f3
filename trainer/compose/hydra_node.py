"""What Hydra's own node of a config may name: callbacks, launcher, sweeper, logging, search path, variables."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..base.errors import Problem
from ..config.allowed_targets import REMEDY, RefusedTarget, origin_of
from ..config.locate import locate
from .limits import limit_composition

LAUNCHER = "leyden.trainer.sweep.hopping_launcher.HoppingLauncher"
"""hydra/launcher=pipeline, which Leyden starts itself."""
SWEEPER = "leyden.trainer.sweep.study.sweeper.OptunaSweeper"
"""hydra/sweeper=optuna, which Leyden starts itself."""
_CORE = "hydra._internal.core_plugins."
_PLUGINS = {
    "hydra.launcher._target_": (LAUNCHER, f"{_CORE}basic_launcher.BasicLauncher"),
    "hydra.sweeper._target_": (SWEEPER, f"{_CORE}basic_sweeper.BasicSweeper"),
}
_LOGGING = {
    "()": ("colorlog.ColoredFormatter",), "class": ("logging.StreamHandler", "logging.FileHandler"),
    "filename": ("${hydra.runtime.output_dir}/${hydra.job.name}.log", "hydra-${hydra.job.name}.log"),
    "stream": ("ext://sys.stdout", "ext://sys.stderr"), "style": ("%", "$"), ".": (),
}  # fmt: skip
"""Values in the logging that Hydra ships, by key; levels, formats and names of handlers are free."""
_CODE = re.compile(
    "PYTHON|LD_|DYLD_|GIT_|PATH|BASH|HYDRA_|TORCH|TRITON|LEYDEN_|OPENSSL_|GCONV_|GCC_|NUMBA_"
    "|(HOME|ENV|MPLBACKEND|MATPLOTLIBRC|XDG_CONFIG_HOME|CC|CXX|CPATH|CUDA_HOME|CUDA_PATH|TMP|TEMP|TMPDIR)$"
    "|.*(PRELOAD|PLUGIN|MODULE|LIBRAR|EXECUTABLE|INJECTION|PROVIDER_PATH|INCLUDE_PATH|COMPILER)"
)
"""Names of environment variables that may decide which code is loaded: they name a library, a module, a compiler, or
a folder where one, or compiled and pickled code, is looked for. Every other one may be set."""


@limit_composition()
def hydra_problems(hydra: DictConfig) -> list[Problem]:
    """Problems of the node `hydra` of a composition. Nothing is imported that is refused by name, nothing is called."""
    problems: list[Problem] = []
    for group in ("callbacks", "launcher", "sweeper", "job_logging", "hydra_logging"):
        logs = group.endswith("_logging")
        remedy = "hydra/job_logging=default, or leave it out" if logs else REMEDY
        for key, name, value, raw in _below(f"hydra.{group}", OmegaConf.select(hydra, group)):
            reason = _of_logging(name, value, raw) if logs else _refuse_value(key, name, value)
            if reason is not None:
                problems.append(Problem(key, reason, value, remedy))
    for variable in map(str, OmegaConf.select(hydra, "job.env_set") or {}):
        if _CODE.match(variable.upper()):
            text = "may decide which code processes load, and no config may set it"
            remedy = f"export {variable}=..., before leyden"
            problems.append(Problem(f"hydra.job.env_set.{variable}", text, remedy=remedy))
    return problems


def _below(key: str, node: Any) -> Iterator[tuple[str, str, Any, Any]]:
    """Key, its last part, value and value as written of all below a node; as written where an interpolation has no
    value before the trials are known."""
    raw: Any = OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node
    for name in raw if isinstance(raw, dict) else range(len(raw)) if isinstance(raw, list) else ():
        value = raw[name]
        with suppress(OmegaConfBaseException):
            value = node[name]
        yield f"{key}.{name}", str(name), value, raw[name]
        yield from _below(f"{key}.{name}", value)


def _of_logging(name: str, value: Any, raw: Any) -> str | None:
    allowed = _LOGGING.get(name)
    if isinstance(value, str) and value.startswith(("ext://", "cfg://")) and name != "stream":
        return "names an object, which logging may not"
    if allowed is None or (raw if name == "filename" else value) in allowed:
        return None
    return f"is none of Hydra's logging, which has {' and '.join(allowed) or 'no such key'}"


def _refuse_value(key: str, name: str, value: Any) -> str | None:
    if name not in ("_target_", "custom_search_space") or value in _PLUGINS.get(key, ()):
        return None
    if name == "custom_search_space" and origin_of(str(value)) != "own":
        return "is no function of your own"
    if not isinstance(value, str) or (key in _PLUGINS and not value.startswith("hydra_plugins.")):
        return "is no launcher or sweeper of Hydra's or of hydra_plugins"
    try:
        locate(value, nested=True)
    except RefusedTarget as error:
        return str(error)
    except Exception as error:
        return str(error) if key in _PLUGINS else None  # of others Hydra says what is wrong
    return None
