"""What sbatch says of a job that it does not take, and which key of the config it speaks of."""

from ...config import Config
from ...errors import ConfigError, refuse

_KEYS = {
    "account": ("account", "`sacctmgr show associations user=$USER` lists yours"),
    "partition": ("partition", "`sinfo` lists the partitions"),
    "qos": ("qos", "`sacctmgr show qos` lists them"),
    "time limit": ("time_min", "`sinfo` shows each partition's limit"),
    "feature": ("constraint", "`sinfo --Format=nodes,features` lists them"),
    "generic resource": ("gres", "`sinfo --Format=nodes,gres` lists them"),
    "gres": ("gres", "`sinfo --Format=nodes,gres` lists them"),
    "node name": ("exclude", "`sinfo --Node` lists the nodes"),
}
"""By a word of sbatch's: the key below topology.slurm, and where the user finds what is allowed. The first one fits."""
_NODES = ("node count", "node configuration", "nodes", "processors", "cpu count")


def refused(said: str, config: Config) -> ConfigError:
    """The error for a job that sbatch did not take.

    Args:
        said: its standard error.
    """
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ").strip() for line in said.strip().splitlines()]
    text = f"sbatch: {'; '.join(filter(None, lines)) or 'no reason given'}"
    lower = text.lower()
    if "job array" in lower:
        return refuse("-m", text, remedy="fewer trials: Slurm's MaxArraySize is the most")
    for word, (key, remedy) in _KEYS.items():
        if word in lower:
            return refuse(f"topology.slurm.{key}", text, getattr(config.topology.slurm, key), remedy)
    if any(word in lower for word in _NODES):
        return refuse("topology.nodes", text, config.topology.nodes, "`sinfo` lists the nodes of each partition")
    if config.topology.slurm.sbatch:
        return refuse("topology.slurm.sbatch", text, config.topology.slurm.sbatch, "`sbatch --help` lists the options")
    return refuse("topology.launcher", text, "slurm")


NEVER = {
    "PartitionConfig": "topology.nodes",
    "PartitionNodeLimit": "topology.nodes",
    "BadConstraints": "topology.slurm.constraint",
    "PartitionTimeLimit": "topology.slurm.time_min",
    "AccountNotAllowed": "topology.slurm.account",
    "InvalidAccount": "topology.slurm.account",
    "QOSNotAllowed": "topology.slurm.qos",
    "InvalidQOS": "topology.slurm.qos",
}
"""Why a job waits that sbatch has taken and that no node could ever start, and the key that this speaks of."""


def never_starts(reason: str, config: Config) -> ConfigError:
    """The error for a job that would wait for ever."""
    key = NEVER[reason]
    value = config.topology.nodes if key == "topology.nodes" else getattr(config.topology.slurm, key.rpartition(".")[2])
    text = f"Slurm would never start this job: {reason}, it asks for more than its partition has or allows"
    return refuse(key, text, value, "`sinfo --long` shows each partition's nodes and limits")


def no_slurm(command: str) -> ConfigError:
    """The error where Slurm's commands are not installed."""
    remedy = "on a login node of the cluster, or topology.launcher=local topology.nodes=1"
    return refuse("topology.launcher", f"there is no {command} on this machine's PATH", "slurm", remedy)
