"""`leyden manifest`: a run as a job of Kubernetes or Kubeflow, printed and not submitted."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

import yaml
from omegaconf import OmegaConf

from ..base.errors import refuse
from ..base.handshake import SECRET
from ..compose.composer import Composer
from ..config.schema import Config
from ..launch.external.starters import EXTERNAL, with_external
from ..launch.kubernetes.indexed_job import indexed_job
from ..launch.kubernetes.pod import name_of
from ..launch.kubernetes.train_job import train_job

KINDS = ("kubernetes", "kubeflow")
_OWN = re.compile(r"[+~]*topology\.kubernetes([.=]|$)")
"""Overrides that only the manifest needs."""
_IMAGE = "topology.kubernetes.image"
_EXAMPLE = f"leyden manifest kubernetes topology=kubernetes {_IMAGE}=IMAGE hydra.run.dir=/shared/run"


def print_manifest(words: Sequence[str], config_dir: str | None) -> int:
    """Compose and validate a run, and print the job that trains it.

    Raises:
        ConfigError: a mistake in the words or in the config.
    """
    if words[:1] not in [[kind] for kind in KINDS]:
        text = f"must be one of {', '.join(KINDS)}, before the overrides"
        raise refuse("manifest", text, words[0] if words else ..., _EXAMPLE)
    kind, overrides = words[0], words[1:]
    composer, words_of_run = Composer(config_dir), with_external(overrides)
    # before the checks of devices, which are not this machine's
    if OmegaConf.select(composer.compose_with_hydra(words_of_run), _IMAGE) is None:
        text = "must be named: a container image with Leyden in it"
        raise refuse(_IMAGE, text, remedy=f"{_IMAGE}=REGISTRY/leyden:0.1.0")
    run = composer.run(words_of_run)
    folder = PurePosixPath(str(run.composed.hydra.run.dir))
    _check_folder(run.config, folder, next((word for word in overrides if word.startswith("hydra.run.dir=")), ""))
    name = run.config.topology.kubernetes.name or name_of(folder)
    command = _command(overrides, composer)
    if kind == "kubernetes":
        manifests = indexed_job(run.config, name, command)
    else:
        manifests = [train_job(run.config, name, command)]
    given = ["--config-dir", config_dir] if config_dir is not None else []
    print(f"# {shlex.join(['leyden', *given, 'manifest', *words])} | kubectl apply -f -")
    print(yaml.safe_dump_all(manifests, sort_keys=False, width=110), end="")
    return 0


def _check_folder(config: Config, folder: PurePosixPath, typed: str) -> None:
    """
    Raises:
        ConfigError: the pods would not find their run folder again.
    """
    mounted = [str(mount.get("mountPath", "")) for mount in config.topology.kubernetes.volumeMounts]
    if not typed or not folder.is_absolute() or "${now:" in typed:
        text = "must be an absolute path in the pods, the same for each of them and after a restart"
        example = f"hydra.run.dir={mounted[0] if mounted else '/shared'}/run"
        raise refuse("hydra.run.dir", text, typed.partition("=")[2] or ..., example)
    # with a secret each pod has a folder of its own
    given = any(variable.get("name") == SECRET for variable in config.topology.kubernetes.env)
    if not given and not any(folder.is_relative_to(path) for path in mounted if path):
        text = f"is on none of the volumes that the pods mount ({', '.join(mounted) or 'there are none'}): all of them "
        text += "need it, and it would end with its pod"
        remedy = "topology.kubernetes.volumes and volumeMounts, as in `leyden help topology=kubernetes`"
        raise refuse("hydra.run.dir", text, str(folder), remedy)


def _command(overrides: Sequence[str], composer: Composer) -> list[str]:
    """Arguments of `leyden` in a pod: a run that is there is continued."""
    folder = [] if composer.config_dir is None else ["--config-dir", str(composer.config_dir)]
    kept = [word for word in overrides if word != EXTERNAL and not _OWN.match(word)]
    resumes = [] if any(word.startswith("topology.on_existing=") for word in kept) else ["topology.on_existing=resume"]
    # without an image the pods check their own devices
    return [*folder, EXTERNAL, *kept, *resumes, f"{_IMAGE}=null"]
