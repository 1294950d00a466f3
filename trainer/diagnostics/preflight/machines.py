"""Checks of the machines of a run, by every worker, before any joins a process group."""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...base.errors import Problem, Refused, join_names
from ...base.log import log
from ...config.schema import Config
from ...hardware.discovery.network import ports
from ...hardware.schema import Fabric
from ...hardware.topology import device_kind
from . import shared_folder
from .devices import device_of, device_problems, shared_devices
from .network import adapter_problems, interface_problems
from .store_gather import StoreGather, is_needed

CLOCKS_APART_S = 5.0
"""Tolerance: a worker may be scheduled seconds late on a busy machine; synchronized clocks differ by milliseconds."""


def check_machines(config: Config, run_dir: Path | None) -> None:
    """Check devices, interfaces, adapters, run folder and clocks of all nodes.

    Args:
        run_dir: None: of a run that is only read, neither folder nor clocks matter.

    Raises:
        Refused: a check failed on some worker; all workers raise the same.
    """
    if not is_needed(config):
        problems = list(device_problems(config))  # a single or elastic worker checks its device alone
        if problems:
            raise Refused(*problems)
        return
    gather, kind = StoreGather(), device_kind(config.topology)
    node = f"node {gather.node} ({socket.gethostname()})"
    problems = [problem.as_data() for problem in _here(config, gather.first_of_node)]
    mine = {"node": node, "device": device_of(kind), "nccl": _nccl(kind), "problems": problems}
    shared = run_dir if config.topology.nodes > 1 else None
    # the marker is written before any worker searches for it
    extra = gather.agree(
        "machines",
        mine,
        _machine_problems,
        lambda: 0 if shared is None else [shared_folder.write_marker(shared), time.time()],
    )
    if shared is not None:
        _check_folder(gather, node, shared, *extra)


def _check_folder(gather: StoreGather, node: str, run_dir: Path, marker: str, at: float) -> None:
    ahead = time.time() - at
    found = shared_folder.problem(run_dir, marker) if gather.first_of_node else None
    problems = [found.as_data()] if found else []
    try:
        mine = {"node": node, "ahead": ahead, "first": gather.first_of_node, "problems": problems}
        gather.agree("folder", mine, _folder_problems)
    finally:
        shared_folder.remove_marker(run_dir, marker, gather.rank)


def _here(config: Config, first_of_node: bool) -> Iterator[Problem]:
    """Problems of this worker's own machine."""
    yield from device_problems(config)
    if first_of_node:
        yield from interface_problems(os.environ)
        if config.topology.nodes > 1:
            yield from _fabric_problems(config.topology.fabric)


def _fabric_problems(fabric: Fabric) -> Iterator[Problem]:
    for problem in adapter_problems(fabric, ports()):
        if fabric.allow_tcp:
            log.warning("preflight: %s; topology.fabric.allow_tcp permits the run over TCP", problem.text)
        else:
            yield problem


def _nccl(kind: str) -> str | None:
    if kind != "cuda":
        return None
    from torch.cuda import nccl

    return ".".join(map(str, nccl.version()))


def _machine_problems(reports: list[dict[str, Any]]) -> list[Problem]:
    problems = merge_problems(reports)
    problems += shared_devices([worker["device"] for worker in reports], [worker["node"] for worker in reports])
    versions = {worker["nccl"]: worker["node"] for worker in reports}
    if len(versions) > 1:
        text = "the workers have loaded different versions of NCCL: "
        text += ", ".join(f"{version} on {node}" for version, node in versions.items())
        problems.append(Problem("NCCL", text, remedy="one environment on all nodes; LD_LIBRARY_PATH and LD_PRELOAD"))
    return problems


def _folder_problems(reports: list[dict[str, Any]]) -> list[Problem]:
    """Problems of the run folder on the nodes; differing clocks are only a warning."""
    for worker in reports:
        if worker["first"] and abs(worker["ahead"]) > CLOCKS_APART_S:
            log.warning(
                "preflight: the clock of %s is %.0f s %s node 0's: times in logs and files will not agree (NTP)",
                worker["node"], abs(worker["ahead"]), "ahead of" if worker["ahead"] > 0 else "behind",
            )  # fmt: skip
    return merge_problems(reports)


def merge_problems(reports: Sequence[dict[str, Any]]) -> list[Problem]:
    """Problems of all workers, each once, with its nodes."""
    nodes: dict[tuple[Any, ...], list[str]] = {}
    for worker in reports:
        for problem in worker["problems"]:
            key = (problem["key"], problem["text"], problem.get("value", ...), problem["remedy"])
            where = nodes.setdefault(key, [])
            if worker["node"] not in where:
                where.append(worker["node"])
    return [
        Problem(key, f"{join_names(where, 8)}: {text}", value, remedy)
        for (key, text, value, remedy), where in nodes.items()
    ]
