"""What a worker does where the run is an examination: meet the others, measure, and, as the first, tell."""

import json
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..config import Config
from ..log import log
from ..origin import shown
from ..preflight import ask_nccl_for_its_log, check_machines, check_transport
from ..run_folder import write_whole
from ..signals import STATUS, StopRequest
from ..summary import write_summary
from ..versions import versions
from .collectives import measured_collectives
from .compute import device_figures
from .figures import Result
from .judge import judged
from .links import measured_links
from .team import Interrupted, Team

RESULT, PICTURE = "result.json", "links.png"


def examine(config: Config, run_dir: Path, stop_request: StopRequest) -> str:
    """Measure everything. Returns the run's status: done, slow where something is, or as what it was stopped.

    Raises:
        Refused: the preflight found the machines wanting.
    """
    check_machines(config, run_dir)
    ask_nccl_for_its_log(config, run_dir)
    team = Team(config, stop_request)
    check_transport(config, run_dir, team.device)
    try:
        result = judged(_measured(team), config.topology)
        status = "slow" if result.findings else "done"
    except Interrupted as interrupted:
        result, status = None, STATUS[interrupted.number]
    if team.rank == 0:
        write_summary(run_dir, {"status": status, "world_size": team.count, "versions": versions()})
        if result is not None:
            _tell(config, run_dir, result)
    if dist.is_initialized():
        dist.barrier()
    return status


def _measured(team: Team) -> Result:
    """Everybody's figures."""
    devices = team.told(device_figures(team))
    links = chain.from_iterable(team.told(measured_links(team)))
    collectives = chain.from_iterable(team.told(measured_collectives(team)))
    return Result(team.workers, devices, list(links), list(collectives))


def _tell(config: Config, run_dir: Path, result: Result) -> None:
    from .tables import print_tables

    topology = config.topology
    said: dict[str, Any] = {"topology": topology.model_dump(), **result.as_data()}
    write_whole(run_dir / RESULT, json.dumps(said, indent=2) + "\n")
    if result.links:
        _draw(run_dir, result)
    print_tables(result)
    for finding in result.findings:
        log.warning("%s", finding)
    if not result.findings:
        log.info("nothing is slow: neither beside the others of its kind nor by what the topology declares")
    log.info("%s, %s%s", shown(run_dir), RESULT, f", {PICTURE}" if result.links else "")
    assert config.doctor is not None
    if config.doctor.write is not None:
        from .measured_topology import as_yaml

        write_whole(Path(config.doctor.write), as_yaml(topology, result, date.today()))
        log.info("measured topology: %s", shown(Path(config.doctor.write)))


def _draw(run_dir: Path, result: Result) -> None:
    """The picture, as a file and for TensorBoard."""
    import numpy
    from torch.utils.tensorboard import SummaryWriter

    from .heat_map import heat_map

    picture = heat_map(result)
    picture.save(run_dir / PICTURE)
    with SummaryWriter(str(run_dir)) as writer:
        writer.add_image("doctor/links", numpy.asarray(picture), dataformats="HWC")
