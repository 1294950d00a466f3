"""Weights that a hub or an installed package has: found once, by the host that submits, before the config is frozen.

Compute nodes have no internet. The frozen config names the file and its SHA-256; every worker checks it.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..base.errors import ConfigError, Problem, refuse
from ..base.paths import user_cache
from .schema import PackagedFile, PackagedWeights, PinnedWeights

_FILE = "model.safetensors"
_SOURCE = re.compile(
    r"(?:timm:(?P<timm>[\w.-]+)|hub:(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+))?(?:/(?P<file>[\w./-]+))?)"
)
SPELLING = "timm:NAME, hub:OWNER/NAME, hub:OWNER/NAME@REVISION or hub:OWNER/NAME/FILE.safetensors"


def is_hub_name(source: str) -> bool:
    """Whether a source of weights names a hub."""
    return source.startswith(("timm:", "hub:"))


def spelling_problem(key: str, source: str) -> Problem | None:
    """The problem of a name of a hub that cannot be one."""
    parsed = _SOURCE.fullmatch(source)
    if parsed is None or ".." in source:
        return Problem(key, f"is no name of weights on a hub: {SPELLING}", source, f"{key}=timm:resnet50.a1_in1k")
    if parsed["file"] and not parsed["file"].endswith(".safetensors"):
        text = "names a file that is not .safetensors; a pickle could execute code"
        return Problem(key, text, source, f"{key}=hub:{parsed['repo']}")
    return None


def weights_cache() -> Path:
    """$LEYDEN_CACHE, or the user's cache, as that of datasets."""
    given = os.environ.get("LEYDEN_CACHE")
    return Path(given).absolute() if given else user_cache()


def with_hub_weights(values: Mapping[str, Any]) -> dict[str, Any]:
    """A run's plain values, the weights of a hub fetched and pinned.

    Raises:
        ConfigError: they cannot be fetched.
    """
    model = values.get("model") or {}
    source = model.get("pretrained")
    if source is True and model.get("public_weights"):
        pinned = _of_package(PackagedWeights.model_validate(model["public_weights"]))
    elif isinstance(source, str) and is_hub_name(source):
        pinned = _pin_name("model.pretrained", source, str(weights_cache()), os.environ.get("HF_ENDPOINT"))
    else:
        return dict(values)
    return {**values, "model": {**model, "pretrained": pinned.model_dump()}}


def packaged_file(packaged: PackagedFile) -> Path | None:
    """The file of a package, which is not imported; None: the package is not installed."""
    spec = find_spec(packaged.package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / packaged.file


def _of_package(weights: PackagedWeights) -> PinnedWeights:
    path = packaged_file(weights)
    assert path is not None  # rules/fine_tuning.py
    digest = digest_of(path) if path.is_file() else None
    if digest != weights.sha256:
        text = f"{path} is not the file that model.public_weights names: its SHA-256 is {digest}"
        raise refuse("model.pretrained", text, True, f"{weights.install} --force-reinstall")
    return PinnedWeights(source=weights.source, path=str(path), sha256=weights.sha256)


def digest_of(path: str | Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def _pin_name(key: str, source: str, folder: str, endpoint: str | None) -> PinnedWeights:
    """The file of a name, fetched once in a process: trials of a sweep share it."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        text = "needs the package huggingface_hub, which is not installed"
        raise refuse(key, text, source, "pip install 'leyden[hub]'") from None
    parsed = _SOURCE.fullmatch(source)
    assert parsed is not None  # spelling_problem
    repo = f"timm/{parsed['timm']}" if parsed["timm"] else parsed["repo"]
    file = parsed["file"] or _FILE
    try:
        path = hf_hub_download(
            repo, file, revision=parsed["revision"], cache_dir=Path(folder) / "hub", endpoint=endpoint
        )
        digest = digest_of(path)
    except Exception as error:  # of the Hub, of the network, of the disk
        raise _not_fetched(key, source, repo, file, error) from error
    return PinnedWeights(source=source, path=str(path), sha256=digest)


def _not_fetched(key: str, source: str, repo: str, file: str, error: Exception) -> ConfigError:
    kind = type(error).__name__
    remedy = f"{key}=FILE, a .safetensors file that you have"
    if kind in ("RepositoryNotFoundError", "GatedRepoError", "RevisionNotFoundError"):
        text = f"there is no {repo} on the hub, or it is not public"
        remedy = f"{key}={source}.TAG, as timm's weights are named: timm:resnet50.a1_in1k" if "timm:" in source else ""
    elif "EntryNotFound" in kind and kind != "LocalEntryNotFoundError":
        text = f"{repo} has no file {file}; pickles (.bin, .pth) are not read"
        remedy = f"{key}=hub:{repo}/FILE.safetensors"
    elif kind in ("LocalEntryNotFoundError", "OfflineModeIsEnabled"):
        text = "it is not in the cache, and the hub cannot be reached from here"
        remedy = f"run once where there is internet, with LEYDEN_CACHE={weights_cache()}, or {remedy}"
    else:
        text = f"cannot be fetched: {kind}: {next(iter(str(error).splitlines()), '')}"
    return refuse(key, text, source, remedy)
