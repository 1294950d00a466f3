"""Errors of sbatch, and the config key that each is about."""

from ...base.errors import ConfigError, refuse
from ...config.schema import Config

_KEYS = {
    "account": ("account", "`sacctmgr show associations user=$USER` lists yours"),
    "partition": ("partition", "`sinfo` lists the partitions"),
    "qos": ("qos", "`sacctmgr show qos` lists them"),
    "time limit": ("time_min", "`sinfo` shows each partition's limit"),
    "dependency": ("dependency", "`squeue --me` lists your jobs"),
    "reservation": ("reservation", "`scontrol show reservation` lists them"),
    "memory": ("mem", "`sinfo --Format=nodes,memory` shows that of the nodes, in MB"),
    "feature": ("constraint", "`sinfo --Format=nodes,features` lists them"),
    "generic resource": ("gres", "`sinfo --Format=nodes,gres` lists them"),
    "gres": ("gres", "`sinfo --Format=nodes,gres` lists them"),
    "gpus-per": ("gres", "`sinfo --Format=nodes,gres` lists them"),
    "node name": ("exclude", "`sinfo --Node` lists the nodes"),
}
"""Key below topology.slurm by a word of the error, and where its values are listed. The first match counts."""
_NODES = ("node count", "node configuration", "nodes", "processors", "cpu count")


def sbatch_error(stderr: str, config: Config) -> ConfigError:
    """The error for a job that sbatch has rejected."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ").strip() for line in stderr.strip().splitlines()]
    text = f"sbatch: {'; '.join(filter(None, lines)) or 'no reason given'}"
    lower = text.lower()
    if "job array" in lower:
        return refuse("-m", text, remedy="fewer trials: at most Slurm's MaxArraySize")
    for word, (key, remedy) in _KEYS.items():
        if word in lower:
            key = _given_gpus(config) if key == "gres" else key
            return refuse(f"topology.slurm.{key}", text, getattr(config.topology.slurm, key), remedy)
    if any(word in lower for word in _NODES):
        return refuse("topology.nodes", text, config.topology.nodes, "`sinfo` lists the nodes of each partition")
    if config.topology.slurm.sbatch:
        return refuse("topology.slurm.sbatch", text, config.topology.slurm.sbatch, "`sbatch --help` lists the options")
    return refuse("topology.launcher", text, "slurm")


def _given_gpus(config: Config) -> str:
    """The key that asks for GPUs."""
    keys = ("gres", "gpus_per_node", "gpus_per_task")
    return next((key for key in keys if getattr(config.topology.slurm, key) is not None), "gres")


NEVER_STARTS = {
    "PartitionConfig": "topology.nodes",
    "PartitionNodeLimit": "topology.nodes",
    "BadConstraints": "topology.slurm.constraint",
    "PartitionTimeLimit": "topology.slurm.time_min",
    "AccountNotAllowed": "topology.slurm.account",
    "InvalidAccount": "topology.slurm.account",
    "DependencyNeverSatisfied": "topology.slurm.dependency",
    "ReservationDeleted": "topology.slurm.reservation",
    "QOSNotAllowed": "topology.slurm.qos",
    "InvalidQOS": "topology.slurm.qos",
}
"""Slurm's reasons for a queued job that no node can ever start, and the config key that each is about."""


def never_starts_error(reason: str, config: Config) -> ConfigError:
    """The error for a queued job that would never start."""
    key = NEVER_STARTS[reason]
    value = config.topology.nodes if key == "topology.nodes" else getattr(config.topology.slurm, key.rpartition(".")[2])
    if key == "topology.slurm.dependency":
        text = f"Slurm would never start this job: {reason}, a job that it waits for has ended otherwise"
        return refuse(key, text, value, "`sacct --jobs=JOB` shows how; topology.slurm.dependency=null")
    text = f"Slurm would never start this job: {reason}, it asks for more than its partition has or allows"
    return refuse(key, text, value, "`sinfo --long` shows each partition's nodes and limits")


def no_pyxis_error(image: str) -> ConfigError:
    """The error where srun has no containers."""
    text = "srun of this cluster has no --container-image: the plugin pyxis is not installed"
    remedy = "topology.slurm.wrapper=[apptainer,exec,--nv,IMAGE]"
    return refuse("topology.slurm.container_image", text, image, remedy)


def no_slurm_error(command: str) -> ConfigError:
    """The error where Slurm's commands are not installed."""
    remedy = "on a login node of the cluster, or topology.launcher=local topology.nodes=1"
    return refuse("topology.launcher", f"there is no {command} on this machine's PATH", "slurm", remedy)
