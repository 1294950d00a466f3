"""Indexed Job of Kubernetes: pod i of N is node i, and a headless service gives node 0 an address."""

from collections.abc import Sequence

from ...config.schema import Config
from ...runs.exit_codes import EXIT_CODES
from ..external.placement import processes_per_node
from .pod import Manifest, literal, metadata, mounts, placement, resources, volumes

_PORT = 29500
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_FINAL_CODES = [2, 3]
"""Exit codes that another try does not change: a mistake, a machine that the preflight refuses."""


def indexed_job(config: Config, name: str, words: Sequence[str]) -> list[Manifest]:
    """The service and the job.

    One process a node: each pod is a worker, by the variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Several:
    torchrun starts those of a pod.

    Args:
        name: of both.
        words: arguments of `leyden`.
    """
    return [_service(config, name), _job(config, name, words)]


def _service(config: Config, name: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(config, name),
        "spec": {
            "clusterIP": "None",
            # before node 0 is ready, which it is when all have come
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": name},
            "ports": [{"name": "rendezvous", "port": _PORT}],
        },
    }


def _job(config: Config, name: str, words: Sequence[str]) -> Manifest:
    nodes, one = config.topology.nodes, processes_per_node(config) == 1
    # a pod that its node has lost is no failure of the run's, nor are those that save and stop because of it;
    # torchrun ends with 1 whatever its workers end with
    by_code = {"FailJob": _FINAL_CODES, "Ignore": [EXIT_CODES["preempted"]]} if one else {}
    rules: list[Manifest] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        *({"action": each, "onExitCodes": {"operator": "In", "values": codes}} for each, codes in by_code.items()),
    ]
    pod = {
        "subdomain": name,
        "restartPolicy": "Never",
        **placement(config),
        "containers": [_container(config, name, words)],
        "volumes": volumes(config),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(config, name),
        "spec": {
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            "backoffLimit": config.topology.kubernetes.backoffLimit,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": rules},
            "template": {"spec": pod},
        },
    }


def _container(config: Config, name: str, words: Sequence[str]) -> Manifest:
    topology, processes = config.topology, processes_per_node(config)
    index = {"valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}
    first = f"{name}-0.{name}"
    if processes == 1:
        command, arguments = ["leyden"], literal(words)
        values = {"WORLD_SIZE": str(topology.nodes), "MASTER_ADDR": first, "MASTER_PORT": str(_PORT)}
        env = [{"name": "RANK", **index}, *({"name": key, "value": value} for key, value in values.items())]
    else:
        command, env = ["torchrun"], [{"name": "NODE_RANK", **index}]
        arguments = [
            f"--nnodes={topology.nodes}", "--node-rank=$(NODE_RANK)", f"--nproc-per-node={processes}",
            f"--master-addr={first}", f"--master-port={_PORT}", "--no-python", "leyden", *literal(words),
        ]  # fmt: skip
    wanted = resources(config)
    return {
        "name": "leyden",
        "image": topology.kubernetes.image,
        "command": command,
        "args": arguments,
        "env": [*env, *topology.kubernetes.env],
        **({"resources": wanted} if wanted is not None else {}),
        "volumeMounts": mounts(config),
    }
