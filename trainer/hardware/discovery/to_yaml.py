"""A discovered machine as a file of conf/topology/, unknown values as comments."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from .machine import Machine
from .network import Port

_COMMENT_COLUMN = 32


def as_topology(machine: Machine) -> str:
    """YAML that composes unchanged: leyden --config-dir FOLDER topology=NAME, from FOLDER/topology/NAME.yaml."""
    sections = {"device": _device, "links": _links, "fabric": _fabric, "host": _host}
    body = [each for name, section in sections.items() for each in _section(name, section(machine))]
    return "\n".join([*_head(machine), *body]) + "\n"


def _section(name: str, lines: Iterable[str]) -> list[str]:
    """A section; its key is a comment if only comments are below it, as YAML would read null."""
    below = list(lines)
    known = any(not each.lstrip().startswith("#") for each in below)
    return [f"{name}:" if known else f"# {name}:", *below] if below else []


def line(key: str, value: Any, comment: str = "", depth: int = 0) -> str:
    """`key: value` as YAML, with a comment."""
    text = f"{'  ' * depth}{key}: {spell_yaml(value)}"
    return f"{text:<{_COMMENT_COLUMN - 2}}  # {comment}" if comment else text


def spell_yaml(value: Any) -> str:
    """A value as YAML, on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {spell_yaml(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(spell_yaml, value))}]"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w.-]*", value) and yaml.safe_load(value) == value:
        return value
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _head(machine: Machine) -> Iterator[str]:
    yield f"# {machine.name}, as `leyden topology` found it. Saved as FOLDER/topology/NAME.yaml it is used by"
    yield "#   leyden --config-dir FOLDER topology=NAME"
    yield "launcher: local"
    yield line("nodes", 1, "hosts like this one")
    yield line("devices_per_node", _devices(machine), "workers started on each, one a device")


def _devices(machine: Machine) -> int:
    return len(machine.gpus.found) or max(1, machine.processors.sockets)


def _device(machine: Machine) -> Iterator[str]:
    found = machine.gpus.found
    if machine.gpus.failure:
        yield f"  # nvidia-smi is installed, and fails: {machine.gpus.failure}"
    if not found:
        yield line("kind", "cpu", "a worker for each socket" if machine.processors.sockets > 1 else "", 1)
        if machine.processors.sockets > 1:
            yield line("sockets", list(range(machine.processors.sockets)), depth=1)
        return
    yield line("kind", "cuda", depth=1)
    yield from _names(sorted({gpu.name for gpu in found}))
    memory = min((gpu.memory_gb for gpu in found if gpu.memory_gb is not None), default=None)
    yield "  # memory_gb: not reported by nvidia-smi" if memory is None else line("memory_gb", memory, depth=1)
    yield from _sockets(machine)
    yield "  # peak_tflops, memory_gb_s: not reported by the machine, see the vendor's data sheet"


def _names(names: list[str]) -> Iterator[str]:
    if len(names) > 1:
        yield f"  # the devices differ: {', '.join(names)}"
    yield line("name", names[0], depth=1)


def _sockets(machine: Machine) -> Iterator[str]:
    if machine.processors.sockets < 2:
        return
    if None in machine.sockets_of_gpus:
        yield "  # sockets: the firmware does not report the socket of each device"
    else:
        yield line("sockets", list(machine.sockets_of_gpus), "workers run on the cores of these", 1)


def _links(machine: Machine) -> Iterator[str]:
    if len(machine.gpus.found) < 2:
        return
    generation = min((gpu.pcie_generation or 0 for gpu in machine.gpus.found), default=0)
    kind = "nvlink" if machine.gpus.nvlink else f"pcie{generation}" if 2 <= generation <= 6 else None
    if kind is None:
        yield "  # in_node: the link between the devices is unknown"
    else:
        yield "  in_node:"
        yield line("kind", kind, depth=2)
        yield "    # gb_s, latency_us: measured by `leyden doctor`"


def _fabric(machine: Machine) -> Iterator[str]:
    rails, interface = machine.rails, machine.interface
    if not rails and not interface:
        yield "  # no adapter is active, and no network interface is up"
    if rails:
        yield from _rdma(machine, rails)
    elif interface:
        yield line("kind", "ethernet", depth=1)
        if interface.speed_gbit_s is None:
            yield f"  # rate_gbit_s: not reported by {interface.name}"
        else:
            yield line("rate_gbit_s", interface.speed_gbit_s, depth=1)
            yield line("rails", 1, depth=1)
    yield from _unused_ports(machine, rails)
    if interface:
        yield line("interface", interface.name, _why(machine), 1)


def _rdma(machine: Machine, rails: list[Port]) -> Iterator[str]:
    note = "if the switches are not configured for RoCE: ethernet, without adapters" if rails[0].kind == "roce" else ""
    yield line("kind", rails[0].kind, note, 1)
    if rails[0].rate_gbit_s is None:
        yield "  # rate_gbit_s: not reported by the adapters"
    else:
        yield line("rate_gbit_s", rails[0].rate_gbit_s, rails[0].rate_name, 1)
    yield line("rails", len(rails), depth=1)
    yield line("adapters", [_adapter(machine, port) for port in rails], depth=1)
    yield from _gid_index(rails)


def _gid_index(rails: list[Port]) -> Iterator[str]:
    indices = {port.gid_index for port in rails}
    if rails[0].kind != "roce" or indices == {None}:
        return
    if len(indices) == 1:
        yield line("gid_index", rails[0].gid_index, "RoCE v2 over IPv4", 1)
    else:
        yield f"  # gid_index differs: {', '.join(f'{port.adapter}: {port.gid_index}' for port in rails)}"


def _adapter(machine: Machine, port: Port) -> str:
    several = sum(other.adapter == port.adapter for other in machine.ports) > 1
    return f"{port.adapter}:{port.number}" if several else port.adapter


def _unused_ports(machine: Machine, rails: list[Port]) -> Iterator[str]:
    for port in machine.ports:
        if port not in rails:
            rate = "" if port.rate_gbit_s is None else f", {port.rate_gbit_s:g} Gbit/s"
            yield f"  # not used: {port.adapter} port {port.number} is {port.state} ({port.link_layer}{rate})"


def _why(machine: Machine) -> str:
    assert machine.interface
    others = [i.name for i in machine.interfaces if i.hardware and i.state == "up" and i != machine.interface]
    default = "the default route" if machine.interface.name == machine.default_route else "no default route; this is up"
    return f"{default}; also up: {', '.join(others)}" if others else default


def _host(machine: Machine) -> Iterator[str]:
    cores = set(machine.processors.cores_of_socket)
    if cores:
        yield line("sockets", machine.processors.sockets, depth=1)
        yield line("cores_per_socket", min(cores), "" if len(cores) == 1 else "the sockets differ", 1)
    else:
        yield "  # sockets, cores_per_socket: not reported by the kernel"
    memory = machine.memory_gb
    yield "  # memory_gb: not reported by the kernel" if memory is None else line("memory_gb", memory, depth=1)
