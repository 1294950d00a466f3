"""Whether the machines of a run are what the run needs, asked of every worker before any of them joins a group."""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..config import Config
from ..discovery.adapters import ports
from ..errors import Problem, Refused, listed
from ..hardware import Fabric
from ..log import log
from ..topology import device_kind
from . import folder
from .devices import device_of, device_problems, shared_devices
from .network import adapter_problems, interface_problems
from .table import Table, as_data, worth_it

CLOCKS_APART_S = 5.0
"""A worker may be scheduled seconds late on a busy machine; clocks that are set by anybody differ by milliseconds."""


def check_machines(config: Config, run_dir: Path) -> None:
    """Devices, interfaces, adapters, run folder and clocks of all nodes.

    Raises:
        Refused: something is not as the run needs it; workers that meet all raise the same.
    """
    if not worth_it(config):
        problems = list(device_problems(config))  # a worker that meets no other has its device all the same
        if problems:
            raise Refused(*problems)
        return
    table, kind = Table(), device_kind(config.topology)
    node = f"node {table.node} ({socket.gethostname()})"
    problems = [as_data(problem) for problem in _here(config, table.first_of_node)]
    mine = {"node": node, "device": device_of(kind), "nccl": _nccl(kind), "problems": problems}
    several = config.topology.nodes > 1
    # the file is there before anybody is told to look for it
    note = table.agree("machines", mine, _judged, lambda: [folder.leave_word(run_dir), time.time()] if several else 0)
    if several:
        _check_folder(table, node, run_dir, *note)


def _check_folder(table: Table, node: str, run_dir: Path, word: str, at: float) -> None:
    ahead = time.time() - at
    found = folder.problem(run_dir, word) if table.first_of_node else None
    problems = [as_data(found)] if found else []
    try:
        mine = {"node": node, "ahead": ahead, "first": table.first_of_node, "problems": problems}
        table.agree("folder", mine, _judged_apart)
    finally:
        folder.forget(run_dir, word, table.rank)


def _here(config: Config, first_of_node: bool) -> Iterator[Problem]:
    """What a worker finds wrong with its own machine."""
    yield from device_problems(config)
    if first_of_node:
        yield from interface_problems(os.environ)
        if config.topology.nodes > 1:
            yield from _fabric_problems(config.topology.fabric)


def _fabric_problems(fabric: Fabric) -> Iterator[Problem]:
    for problem in adapter_problems(fabric, ports()):
        if fabric.allow_tcp:
            log.warning("preflight: %s; topology.fabric.allow_tcp lets the run go on over TCP", problem.text)
        else:
            yield problem


def _nccl(kind: str) -> str | None:
    if kind != "cuda":
        return None
    from torch.cuda import nccl

    return ".".join(map(str, nccl.version()))


def _judged(said: list[dict[str, Any]]) -> list[Problem]:
    problems = together(said)
    problems += shared_devices([worker["device"] for worker in said], [worker["node"] for worker in said])
    versions = {worker["nccl"]: worker["node"] for worker in said}
    if len(versions) > 1:
        text = "the workers have loaded different versions of NCCL: "
        text += ", ".join(f"{version} on {node}" for version, node in versions.items())
        problems.append(Problem("NCCL", text, remedy="one environment on all nodes; LD_LIBRARY_PATH and LD_PRELOAD"))
    return problems


def _judged_apart(said: list[dict[str, Any]]) -> list[Problem]:
    """The folder as the nodes see it; clocks that differ are told, and break nothing."""
    for worker in said:
        if worker["first"] and abs(worker["ahead"]) > CLOCKS_APART_S:
            log.warning(
                "preflight: the clock of %s is %.0f s %s node 0's: times in logs and files will not agree (NTP)",
                worker["node"], abs(worker["ahead"]), "ahead of" if worker["ahead"] > 0 else "behind",
            )  # fmt: skip
    return together(said)


def together(said: Sequence[dict[str, Any]]) -> list[Problem]:
    """Everybody's problems, each once, with the nodes that have it."""
    nodes: dict[tuple[Any, ...], list[str]] = {}
    for worker in said:
        for problem in worker["problems"]:
            key = (problem["key"], problem["text"], problem.get("value", ...), problem["remedy"])
            where = nodes.setdefault(key, [])
            if worker["node"] not in where:
                where.append(worker["node"])
    return [
        Problem(key, f"{listed(where, 8)}: {text}", value, remedy)
        for (key, text, value, remedy), where in nodes.items()
    ]
