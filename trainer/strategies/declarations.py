"""What each of Leyden's strategies declares. No torch: a mistake in the number of workers must cost no second."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from ..config.strategy_class import Processes, StrategyDeclarations
from ..hardware.schema import Topology


class OneWorker(StrategyDeclarations):
    """strategy=single."""

    max_workers = 1
    can_unfreeze = True


class UnusedParameters(StrategyDeclarations):
    """strategy=ddp, which can train with parameters that get no gradient."""

    can_unfreeze = True
    replicates_parameters = True


class OwnBatchShares(StrategyDeclarations):
    """Strategies that divide the batch in a way of their own: hybrid, spatial."""

    needs_divisible_batch = False
    divides_parameters = True
    shares_activations = False
    replicates_parameters = False
    can_recompute = False


class ShardedParameters(StrategyDeclarations):
    """strategy=fsdp and strategy=hsdp."""

    divides_parameters = True


class LocalUpdate(StrategyDeclarations):
    """Strategies whose workers can be simulated: local_sgd, and with servers easgd and asgd."""

    shares_activations = False
    local_updates = True

    @override
    @classmethod
    def processes(cls, arguments: Mapping[str, Any], topology: Topology) -> Processes:
        options = _execution(arguments)
        if options.get("simulate"):
            return Processes(workers=1, simulated=True)
        servers = cls.server_processes(arguments, topology)
        elastic = servers > 0 and bool(options.get("elastic"))
        return Processes(workers=topology.workers, servers=servers, elastic=elastic)

    @classmethod
    def server_processes(cls, arguments: Mapping[str, Any], topology: Topology) -> int:
        """Parameter servers of a run that is not simulated."""
        return 0


class ParameterServers(LocalUpdate):
    """strategy=asgd: parameters are held by servers."""

    @override
    @classmethod
    def server_processes(cls, arguments: Mapping[str, Any], topology: Topology) -> int:
        given = _execution(arguments).get("servers")
        return given if isinstance(given, int) and given > 0 else topology.usual_servers


class ServersByForm(ParameterServers):
    """strategy=easgd: the center is held by servers with form=server."""

    @override
    @classmethod
    def server_processes(cls, arguments: Mapping[str, Any], topology: Topology) -> int:
        by_server = arguments.get("form", "allreduce") == "server"
        return super().server_processes(arguments, topology) if by_server else 0


def _execution(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """strategy.execution, which is not validated yet."""
    given = arguments.get("execution")
    return given if isinstance(given, Mapping) else {}


DECLARATIONS: dict[str, type[StrategyDeclarations]] = {
    "asgd.ASGD": ParameterServers,
    "butterfly.Butterfly": StrategyDeclarations,
    "ddp.DDP": UnusedParameters,
    "easgd.EASGD": ServersByForm,
    "fsdp.FSDP": ShardedParameters,
    "hybrid.Hybrid": OwnBatchShares,
    "local_sgd.LocalSGD": LocalUpdate,
    "single.Single": OneWorker,
    "spatial.Spatial": OwnBatchShares,
}
"""Declarations by the class's path below leyden.trainer.strategies. Each class inherits its own: a test checks it."""
