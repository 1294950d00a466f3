"""TrainJob of Kubeflow Trainer v2: its runtime for torch gives torchrun the variables PET_* of each node."""

from collections.abc import Sequence

from ...config.schema import Config
from ..external.placement import processes_per_node
from .pod import Manifest, literal, metadata, mounts, placement, resources, volumes

_NODE = "node"
"""Name that runtimes for torch give to the replicated job, and to its container."""
_MANAGER = "leyden"


def train_job(config: Config, name: str, words: Sequence[str]) -> Manifest:
    """The job, whose volumes and placement are patches of its runtime (Kubeflow Trainer 2.2 and later).

    Args:
        words: arguments of `leyden`.
    """
    topology, wanted = config.topology, resources(config)
    pod = {
        **placement(config),
        "containers": [{"name": _NODE, "volumeMounts": mounts(config)}],
        "volumes": volumes(config),
    }
    replicated = {"name": _NODE, "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(config, name),
        "spec": {
            "runtimeRef": {"name": topology.kubernetes.runtimeRef},
            "trainer": {
                "image": topology.kubernetes.image,
                "command": ["torchrun", "--no-python", "leyden"],
                "args": literal(words),
                **({"env": topology.kubernetes.env} if topology.kubernetes.env else {}),
                "numNodes": topology.nodes,
                "numProcPerNode": processes_per_node(config),
                **({"resourcesPerNode": wanted} if wanted is not None else {}),
            },
            "runtimePatches": [
                {
                    "manager": _MANAGER,
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
                }
            ],
        },
    }
