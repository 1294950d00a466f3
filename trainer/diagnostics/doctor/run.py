"""Worker of a doctor run: preflight, measurements, and on rank 0 the report."""

import json
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...base.atomic_file import write_atomically
from ...base.log import log
from ...base.paths import shorten_path
from ...base.signals import STATUS, StopRequest
from ...base.versions import versions
from ...config.schema import Config
from ...runs.summary import write_summary
from ..preflight.machines import check_machines
from ..preflight.transport import check_transport, enable_nccl_log
from .collectives import measure_collectives
from .device_bench import device_figures
from .findings import with_findings
from .link_bench import measure_links
from .process_group import DoctorGroup, Interrupted
from .results import CollectiveFigures, DeviceFigures, LinkFigures, Result

RESULT, PICTURE = "result.json", "links.png"


def examine(config: Config, run_dir: Path, stop_request: StopRequest) -> str:
    """Measure all devices, links and collectives. Returns the run's status: done, slow (with findings), or the stop's.

    Raises:
        Refused: by the preflight.
    """
    check_machines(config, run_dir)
    enable_nccl_log(config, run_dir)
    group = DoctorGroup(config, stop_request)
    check_transport(config, run_dir, group.device)
    try:
        result = with_findings(_measure_all(group), config.topology)
        status = "slow" if result.findings else "done"
    except Interrupted as interrupted:
        result, status = None, STATUS[interrupted.number]
    if group.rank == 0:
        write_summary(run_dir, {"status": status, "world_size": group.count, "versions": versions()})
        if result is not None:
            _report(config, run_dir, result)
    if dist.is_initialized():
        dist.barrier()
    return status


def _measure_all(group: DoctorGroup) -> Result:
    """Figures of all workers."""
    devices = group.gather(device_figures(group), DeviceFigures)
    links = chain.from_iterable(group.gather(measure_links(group), list[LinkFigures]))
    collectives = chain.from_iterable(group.gather(measure_collectives(group), list[CollectiveFigures]))
    return Result(group.workers, devices, list(links), list(collectives))


def _report(config: Config, run_dir: Path, result: Result) -> None:
    from .tables import print_tables

    topology = config.topology
    content: dict[str, Any] = {"topology": topology.model_dump(), **result.as_data()}
    write_atomically(run_dir / RESULT, json.dumps(content, indent=2) + "\n")
    if result.links:
        _draw(run_dir, result)
    print_tables(result)
    for finding in result.findings:
        log.warning("%s", finding)
    if not result.findings:
        log.info("nothing is slow, compared with others of its kind and with the topology")
    log.info("%s, %s%s", shorten_path(run_dir), RESULT, f", {PICTURE}" if result.links else "")
    assert config.doctor is not None
    if config.doctor.write is not None:
        from .measured_topology import as_yaml

        write_atomically(Path(config.doctor.write), as_yaml(topology, result, date.today()))
        log.info("measured topology: %s", shorten_path(Path(config.doctor.write)))


def _draw(run_dir: Path, result: Result) -> None:
    """Write the heat map, as a file and for TensorBoard."""
    import numpy
    from torch.utils.tensorboard import SummaryWriter

    from .heat_map import heat_map

    picture = heat_map(result)
    picture.save(run_dir / PICTURE)
    with SummaryWriter(str(run_dir)) as writer:
        writer.add_image("doctor/links", numpy.asarray(picture), dataformats="HWC")
