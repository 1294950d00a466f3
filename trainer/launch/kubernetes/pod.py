"""Parts of a manifest that both kinds of job have."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from ...config.schema import Config

Manifest = dict[str, Any]

MOST_NAME = 52
"""Characters of a job's name: with a hyphen and the number of a pod it is a host name, of at most 63."""
_SHARED_MEMORY = "dshm"
"""A volume over /dev/shm, which has 64 MB in a container: NCCL's processes need more."""


def metadata(config: Config, name: str) -> Manifest:
    namespace = config.topology.kubernetes.namespace
    return {"name": name, **({"namespace": namespace} if namespace is not None else {})}


def name_of(folder: PurePosixPath) -> str:
    """A job's name from that of its run folder: lower-case letters, digits and hyphens, a letter first."""
    plain = re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")
    named = plain if re.match(r"[a-z]", plain) else f"leyden-{plain}".rstrip("-")
    return named[:MOST_NAME].rstrip("-")


def resources(config: Config) -> Manifest | None:
    """Resources of a pod; None if none are named."""
    given, topology = config.topology.kubernetes.resources, config.topology
    if given is None and topology.device.kind == "cuda":
        return {"limits": {"nvidia.com/gpu": topology.devices_per_node}}
    return given


def volumes(config: Config) -> list[Manifest]:
    return [*config.topology.kubernetes.volumes, {"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory"}}]


def mounts(config: Config) -> list[Manifest]:
    return [*config.topology.kubernetes.volumeMounts, {"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}]


def placement(config: Config) -> Manifest:
    """Fields of a pod that say where and as whom it runs."""
    pods = config.topology.kubernetes
    names = ("imagePullSecrets", "nodeSelector", "tolerations", "serviceAccountName", "terminationGracePeriodSeconds")
    return {name: getattr(pods, name) for name in names if getattr(pods, name)}


def literal(words: Sequence[str]) -> list[str]:
    """Arguments without references to environment variables, which Kubernetes would expand."""
    return [word.replace("$(", "$$(") for word in words]
