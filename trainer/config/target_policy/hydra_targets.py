"""What Hydra's own node of a config may name: callbacks, launcher, sweeper, handlers of logging, environment variables.

Hydra instantiates callbacks, launcher and sweeper of a sweep, and configures logging for its jobs. They get the same
verdict as the groups of Leyden, whatever the release of Hydra refuses by itself.
"""

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ...base.errors import Problem
from ..blocklist.verdict import RefusedTarget, refused_name
from ..composition.limits import limited
from ..locate import locate

LAUNCHER = "leyden.trainer.sweep.hopping_launcher.HoppingLauncher"
"""hydra/launcher=pipeline, which Leyden starts itself."""
SWEEPER = "leyden.trainer.sweep.study.sweeper.OptunaSweeper"
"""hydra/sweeper=optuna, which Leyden starts itself."""
_BUILT_IN = (
    LAUNCHER, SWEEPER, "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
)  # fmt: skip
"""Names that need no look at the object: every config has them, and a config error must not wait for imports."""
_NODES = ("callbacks", "launcher", "sweeper", "job_logging", "hydra_logging")
_KEYS = ("_target_", "custom_search_space")
"""Keys whose values are import paths; the second is that of Hydra's own Optuna sweeper."""
_LOGGING_KEYS = ("()", "class", "queue", "listener", "handler_class", "formatter_class")
_LOGGING = (
    "logging.FileHandler", "logging.Filter", "logging.Formatter", "logging.NullHandler", "logging.StreamHandler",
    "logging.handlers.RotatingFileHandler", "logging.handlers.TimedRotatingFileHandler",
    "logging.handlers.WatchedFileHandler",
)  # fmt: skip
"""What logging may be configured with, of Python's own."""
_STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
_LOADING = (
    "BASH_ENV", "DYLD_INSERT_LIBRARIES", "DYLD_LIBRARY_PATH", "HYDRA_INSTANTIATE_ALLOWLIST_OVERRIDE", "LD_AUDIT",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "LEYDEN_TRUST", "PATH", "PYTHONBREAKPOINT", "PYTHONEXECUTABLE", "PYTHONHOME",
    "PYTHONINSPECT", "PYTHONPATH", "PYTHONPLATLIBDIR", "PYTHONSTARTUP", "PYTHONUSERBASE",
)  # fmt: skip
"""Environment variables that decide which code a process loads."""


@limited()
def hydra_problems(hydra: DictConfig) -> list[Problem]:
    """Problems of the node `hydra` of a composition. Nothing is imported that is refused by name, nothing is called."""
    return list(_problems(hydra))


def _problems(hydra: DictConfig) -> Iterator[Problem]:
    for name in _NODES:
        yield from _in(f"hydra.{name}", OmegaConf.select(hydra, name), is_logging=name.endswith("logging"))
    for variable in OmegaConf.select(hydra, "job.env_set") or {}:
        if variable in _LOADING:
            text = "decides which code processes load, and no config may set it"
            yield Problem(f"hydra.job.env_set.{variable}", text, remedy=f"export {variable}=..., before leyden")


def _in(key: str, node: Any, is_logging: bool) -> Iterator[Problem]:
    if OmegaConf.is_list(node):
        for index in range(len(node)):
            yield from _in(f"{key}.{index}", _value(node, index), is_logging)
    elif OmegaConf.is_dict(node):
        for name in node:
            value = _value(node, name)
            reason = _refused(str(name), value, is_logging)
            if reason is not None:
                yield Problem(f"{key}.{name}", reason, value)
            yield from _in(f"{key}.{name}", value, is_logging)
    elif is_logging and isinstance(node, str) and node.startswith("ext://") and node not in _STREAMS:
        yield Problem(key, f"logging may name {' and '.join(_STREAMS)} alone", node)


def _value(node: Any, name: Any) -> Any:
    """A resolved value; None for one that has none before the trials are known."""
    try:
        return None if OmegaConf.is_missing(node, name) else node[name]
    except OmegaConfBaseException:
        return None


def _refused(name: str, value: Any, is_logging: bool) -> str | None:
    if is_logging and name == "style" and value == "{":
        return "reads attributes of objects; must be % or $"
    if not isinstance(value, str) or name not in (_LOGGING_KEYS if is_logging else _KEYS):
        return None
    if value in _BUILT_IN or (is_logging and value in _LOGGING):
        return None
    reason = refused_name(value)
    if reason is not None or "." not in value:
        return reason
    try:
        locate(value)
    except RefusedTarget as error:
        return str(error)
    except Exception:
        return None  # Hydra says what is wrong with it
    return None
