"""Rules of initial weights and frozen parameters: init_from, model.pretrained, model.freeze, model.unfreeze_at."""

from collections.abc import Iterator
from pathlib import Path

from ...base.errors import ConfigError, Problem
from ...base.paths import exists
from ...config.hub_weights import is_hub_name, packaged_file, spelling_problem
from ...config.schema import Config, Model, PinnedWeights
from ...config.strategy_class import StrategyDeclarations
from ...config.teacher import KEY as TEACHER
from ...config.teacher import describe_teacher, find_teacher

_PICKLES = (".pth", ".pt", ".bin", ".pkl", ".pickle", ".tar")
_CONVERT = "safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'weights.safetensors')"


def initial_weights(config: Config) -> Iterator[Problem]:
    """Sources of weights that do not exist, or that are not read."""
    model = config.model
    source = None if model is None else model.weights
    packaged = model.public_weights if model is not None and model.pretrained is True else None
    if config.init_from is not None:
        yield from source_problems("init_from", config.init_from)
        if source is not None or packaged is not None:
            text = "and init_from both name initial weights"
            named = source.source if isinstance(source, PinnedWeights) else source or True
            yield Problem("model.pretrained", text, named, "init_from=null")
    if isinstance(source, str):
        yield from source_problems("model.pretrained", source)
    if packaged is not None and packaged_file(packaged) is None:
        text = f"needs the package {packaged.package}, which is not installed"
        yield Problem("model.pretrained", text, True, packaged.install)


def source_problems(key: str, source: str) -> Iterator[Problem]:
    """Problems of a run folder, a file or a name of a hub."""
    suffix = Path(source).suffix.lower()
    if is_hub_name(source):
        problem = spelling_problem(key, source)
        if key != "model.pretrained":
            remedy = f"model.pretrained={source}" if key == "init_from" else f"{key}=RUN"
            problem = Problem(key, "takes runs and files", source, remedy)
        yield from [] if problem is None else [problem]
    elif suffix in _PICKLES:
        text = "is a pickle, which could execute code and is not read; once, for a file that you trust:\n" + _CONVERT
        yield Problem(key, text, source, f"{key}=weights.safetensors")
    elif not exists(source):
        text = f"there is no such run folder or file{existing_part(source)}"
        names = ", timm:NAME or hub:OWNER/NAME" if key == "model.pretrained" else ""
        yield Problem(key, text, source, f"{key}=RUN, a .ckpt or a .safetensors file{names}")


def teacher_problems(config: Config) -> Iterator[Problem]:
    """Problems of the teacher that a config names, as long as it is not pinned."""
    source = find_teacher(config.task)
    if source is None:
        return
    problems = list(source_problems(TEACHER, source))
    yield from problems
    if not problems:
        try:
            describe_teacher(source)
        except ConfigError as error:
            yield from error.problems


def existing_part(path: str) -> str:
    """The existing part of a path and the first missing one, for a message."""
    absolute = Path(path).expanduser().absolute()
    there = next(parent for parent in absolute.parents if parent.exists())
    return f"; {there} exists, {absolute.relative_to(there).parts[0]!r} in it does not"


def frozen_parameters(config: Config) -> Iterator[Problem]:
    """Mistakes in model.unfreeze_at that need no class."""
    model = config.model
    if model is None or model.unfreeze_at is None:
        return
    key = "model.unfreeze_at"
    if not model.freeze:
        yield Problem(key, "nothing is frozen: model.freeze is []", model.unfreeze_at, "model.freeze=['stem*']")
    if model.unfreeze_at >= config.trainer.max_epochs:
        text = f"must be less than trainer.max_epochs={config.trainer.max_epochs}; null: never"
        yield Problem(key, text, model.unfreeze_at, f"{key}=null")


def unfreezing(config: Config, model: Model, declared: type[StrategyDeclarations], name: str) -> Iterator[Problem]:
    """Whether the strategy can begin to train parameters in the middle of a run."""
    if model.unfreeze_at is None:
        return
    if not declared.can_unfreeze:
        text = f"strategy={name} lays out the trained parameters once, at the start"
        remedy = "model.unfreeze_at=null, or strategy=ddp strategy.find_unused_parameters=true"
        yield Problem("model.unfreeze_at", text, model.unfreeze_at, remedy)
    elif name == "ddp" and not config.strategy.arguments.get("find_unused_parameters"):
        text = "ddp waits for a gradient of every parameter, and frozen ones have none until model.unfreeze_at"
        key = "strategy.find_unused_parameters"
        yield Problem(key, text, False, f"{key}=true")
    elif name == "ddp" and config.strategy.arguments.get("static_graph"):
        text = "the parameters that are used change at model.unfreeze_at"
        yield Problem("strategy.static_graph", text, True, "strategy.static_graph=false")
