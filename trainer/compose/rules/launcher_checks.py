"""Rules of what starts the workers."""

from collections.abc import Iterator

from ...base.errors import Problem
from ...config.schema import Config
from .slurm_checks import slurm_problems


def slurm_launcher(config: Config) -> Iterator[Problem]:
    topology = config.topology
    if config.launcher == "slurm":
        yield from slurm_problems(topology.slurm)
    if topology.device.kind == "auto" and (config.launcher == "slurm" or topology.in_pods):
        text = "the machine that submits a job cannot tell what the job's nodes have: must be one of cpu, cuda"
        yield Problem("topology.device.kind", text, "auto", "topology.device.kind=cuda")


def local_launcher(config: Config) -> Iterator[Problem]:
    topology = config.topology
    if topology.launcher == "local" and topology.nodes > 1 and not config.simulated:
        text = "launcher=local starts workers on this machine only"
        yield Problem("topology.nodes", text, topology.nodes, "topology.launcher=node or topology.nodes=1")


def external_launcher(config: Config) -> Iterator[Problem]:
    if config.topology.launcher != "external":
        return
    nodes = config.topology.nodes
    if config.servers % nodes or (nodes > 1 and config.servers and config.topology.server_placement == "first_node"):
        text = f"each host must run the same number of processes; the number of parameter servers is {config.servers}"
        remedy = f"topology.server_placement=one_a_node strategy.execution.servers={nodes}"
        yield Problem("topology.nodes", text, nodes, remedy)
    kinds = {
        "workers that come and go": config.elastic,
        "a pipeline of trials": config.pipeline is not None,
        "simulated workers": config.simulated,
    }
    for kind, wanted in kinds.items():
        if wanted:
            text = f"the other program starts workers alone, and the run has {kind}"
            remedy = "topology.launcher=local, on several hosts topology.launcher=node"
            yield Problem("topology.launcher", text, "external", remedy)
