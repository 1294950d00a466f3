"""Small trees of /sys and /proc in the shape of real hosts, a program in place of their nvidia-smi, and composing."""

import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leyden.trainer.compose.composer import Composer
from leyden.trainer.compose.validation import validate_values
from leyden.trainer.config.schema import Config

Files = dict[str, str]


@dataclass(frozen=True)
class Built:
    root: Path
    nvidia_smi: str


def topology_config(*overrides: str, config_dir: Path | None = None) -> Config:
    """A composed and validated config, on whatever machine; what only the machine could refuse is not asked."""
    composer = Composer(str(config_dir) if config_dir else None)
    composed = composer.compose_with_hydra(overrides)
    return validate_values(composer.freeze_values(composed))


def build(folder: Path, files: Mapping[str, str], nvidia_smi: str | None = None) -> Built:
    """Write the files below a folder. `nvidia_smi`: a shell script; without one there is no such program."""
    for name, text in files.items():
        path = folder / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "root").mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    if nvidia_smi is not None:
        program.write_text(f"#!/bin/sh\n{nvidia_smi}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return Built(folder / "root", str(program))


# parts


def sockets(threads: Sequence[Sequence[int]], cores_each: int, numa_nodes: Sequence[str] | None = None) -> Files:
    """Threads of each socket; thread i of a socket is on its core i % cores_each. `numa_nodes`: cpulist of each."""
    files: Files = {}
    for package, numbers in enumerate(threads):
        for index, number in enumerate(numbers):
            folder = f"sys/devices/system/cpu/cpu{number}/topology"
            files[f"{folder}/physical_package_id"] = f"{package}\n"
            files[f"{folder}/core_id"] = f"{index % cores_each}\n"
    lists = numa_nodes or [",".join(map(str, numbers)) for numbers in threads]
    files |= {f"sys/devices/system/node/node{node}/cpulist": f"{listed}\n" for node, listed in enumerate(lists)}
    # Neighbours of the folders that are read, as the kernel has them.
    online = ",".join(str(number) for numbers in threads for number in numbers)
    return files | {"sys/devices/system/cpu/online": f"{online}\n", "sys/devices/system/cpu/cpufreq/boost": "1\n"}


def host(name: str, memory_kib: int) -> Files:
    return {
        "proc/sys/kernel/hostname": f"{name}\n",
        "proc/meminfo": f"MemTotal:       {memory_kib} kB\nMemFree: 1 kB\n",
    }


def port(adapter: str, rate: str, state: str = "4: ACTIVE", layer: str = "InfiniBand", number: int = 1) -> Files:
    folder = f"sys/class/infiniband/{adapter}/ports/{number}"
    return {
        f"{folder}/state": f"{state}\n", f"{folder}/rate": f"{rate}\n", f"{folder}/link_layer": f"{layer}\n",
        f"sys/class/infiniband/{adapter}/device/numa_node": "0\n",
    }  # fmt: skip


def gids(adapter: str) -> Files:
    """The table of a RoCE port: link-local in version 1 and 2, then the IPv4 address in both, then an empty entry."""
    link_local, address = "fe80:0000:0000:0000:0e42:a1ff:fe73:a5e8", "0000:0000:0000:0000:0000:ffff:0a00:0001"
    entries = [(link_local, "IB/RoCE v1"), (link_local, "RoCE v2"), (address, "IB/RoCE v1"), (address, "RoCE v2")]
    folder = f"sys/class/infiniband/{adapter}/ports/1"
    files = {f"{folder}/gids/{index}": f"{gid}\n" for index, (gid, _) in enumerate(entries)}
    files |= {f"{folder}/gid_attrs/types/{index}": f"{kind}\n" for index, (_, kind) in enumerate(entries)}
    return files | {f"{folder}/gids/4": "0000:0000:0000:0000:0000:0000:0000:0000\n"}


def interface(name: str, state: str = "up", speed_mbit: int | None = None, hardware: bool = True) -> Files:
    files = {f"sys/class/net/{name}/operstate": f"{state}\n"}
    files |= {f"sys/class/net/{name}/speed": f"{speed_mbit}\n"} if speed_mbit is not None else {}
    return files | ({f"sys/class/net/{name}/device/vendor": "0x15b3\n"} if hardware else {})


LOOPBACK = interface("lo", "unknown", hardware=False)


def routes(*rows: tuple[str, str, int]) -> Files:
    """Rows of interface, destination as the kernel spells it, metric."""
    head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    lines = [
        f"{name}\t{to}\t010200C0\t0003\t0\t0\t{metric}\t{'00000000' if to == '00000000' else '00FFFFFF'}\t0\t0\t0\n"
        for name, to, metric in rows
    ]
    return {"proc/net/route": head + "".join(lines)}


def gpu_nodes(bus_ids: Sequence[str], nodes: Sequence[int]) -> Files:
    found = zip(bus_ids, nodes, strict=True)
    files = {f"sys/bus/pci/devices/0000:{bus}:00.0/numa_node": f"{node}\n" for bus, node in found}
    for index, bus in enumerate(bus_ids):
        said = f"Model: \t\t NVIDIA\nGPU UUID: \t GPU-{index}a{bus}-0000\nBus Location: \t 0000:{bus}:00.0\n"
        files[f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information"] = said
    return files


def smi(name: str, bus_ids: Sequence[str], memory_mib: int | str, generation: int | str, between: str) -> str:
    """The script of an nvidia-smi with these GPUs, `between` every two of which `topo -m` puts its word."""
    rows = "\n".join(
        f"{index}, {name}, 00000000:{bus.upper()}:00.0, {memory_mib}, {generation}, GPU-{index}a{bus}-0000"
        for index, bus in enumerate(bus_ids)
    )
    count = len(bus_ids)
    matrix = "\n".join(
        f"GPU{i}\t" + "\t".join(" X " if i == j else between for j in range(count)) + "\tPXB\t0-3,8-11\t0"
        for i in range(count)
    )
    legend = "Legend:\n  X    = Self\n  SYS  = Traverses PCIe and SMP\n  NV#  = Connection of a bonded set of # NVLinks"
    head = "\t" + "\t".join(f"GPU{i}" for i in range(count)) + "\tNIC0\tCPU Affinity\tNUMA Affinity"
    return f"if [ $1 = topo ]; then cat <<'E'\n{head}\n{matrix}\n{legend}\nE\nelse cat <<'E'\n{rows}\nE\nfi"


# hosts

H100_BUSES = ["1b", "43", "52", "61", "9d", "c3", "d1", "df"]
K40_BUSES = ["04", "05", "83", "84"]
TWO_SOCKETS = sockets([[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]], cores_each=4)


def dgx_like(folder: Path) -> Built:
    """8 H100 with NVLink, 8 NDR adapters and a slower pair for storage, two sockets; cores are fewer than there are."""
    compute = ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"]
    rails = [port(adapter, "400 Gb/sec (4X NDR)") for adapter in compute]
    storage = [port(adapter, "200 Gb/sec (4X HDR)") for adapter in ("mlx5_1", "mlx5_7")]
    ethernet = port("mlx5_2", "100 Gb/sec (4X EDR)", layer="Ethernet")
    files = host("dgx-04", 2113418924) | TWO_SOCKETS | gpu_nodes(H100_BUSES, [0] * 4 + [1] * 4) | ethernet
    for part in [*rails, *storage]:
        files |= part
    files |= interface("ens6f0", speed_mbit=100000) | interface("ibp24s0", speed_mbit=400000) | LOOPBACK
    files |= interface("docker0", "down", hardware=False) | routes(
        ("ens6f0", "00000000", 0), ("docker0", "000011AC", 0)
    )
    return build(folder, files, smi("NVIDIA H100 80GB HBM3", H100_BUSES, 81559, 5, "NV18"))


def minwa_like(folder: Path) -> Built:
    """4 K40m on two sockets, an old FDR adapter with a second port that is down; nvidia-smi knows little."""
    processor = sockets([range(6), range(6, 12)], cores_each=6)
    files = host("minwa17", 197914624) | processor | gpu_nodes(K40_BUSES, [0, 0, 1, 1])
    files |= port("mlx4_0", "56 Gb/sec (4X FDR)") | port("mlx4_0", "10 Gb/sec (4X)", "1: DOWN", number=2)
    files |= interface("eth0", speed_mbit=1000) | interface("eth1", "down") | interface("ib0") | LOOPBACK
    return build(folder, files | routes(("eth0", "00000000", 100)), smi("Tesla K40m", K40_BUSES, 11519, "[N/A]", "SYS"))


def roce_like(folder: Path) -> Built:
    """Two RoCE adapters, GPUs on PCIe, and two NUMA nodes a socket."""
    nodes = ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]
    processor = sockets([[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]], 4, nodes)
    files = host("roce1", 528000000) | processor | gpu_nodes(["17", "b1"], [1, 2])
    for adapter in ("mlx5_bond_0", "mlx5_bond_1"):
        files |= port(adapter, "100 Gb/sec (4X EDR)", layer="Ethernet") | gids(adapter)
    files |= interface("bond0", speed_mbit=100000, hardware=False) | interface("eno1", speed_mbit=1000) | LOOPBACK
    files |= {"sys/class/net/bonding_masters": "bond0\n"}
    files |= routes(("eno1", "00000000", 200), ("bond0", "00000000", 100))
    return build(folder, files, smi("NVIDIA A10", ["17", "b1"], 23028, 4, "SYS"))


def cloud_like(folder: Path) -> Built:
    """A virtual machine with a GPU, no NUMA, and a network card that does not know its speed."""
    files = host("ip-10-0-0-7", 63923840) | sockets([range(4)], cores_each=2) | gpu_nodes(["1e"], [-1])
    files |= interface("ens5", speed_mbit=-1) | LOOPBACK | routes(("ens5", "00000000", 0))
    return build(folder, files, smi("Tesla T4", ["1e"], 15360, 3, "X"))


def adapter_down(folder: Path) -> Built:
    """InfiniBand whose cable is out, two sockets without NUMA, and a driver that does not answer."""
    files = host("node9", 65000000) | sockets([[0, 1], [2, 3]], cores_each=2)
    files |= port("mlx5_0", "10 Gb/sec (4X SDR)", "1: DOWN") | interface("eth0", speed_mbit=25000) | LOOPBACK
    return build(folder, files, "echo 'NVIDIA-SMI has failed: no driver'; exit 9")


def no_numa(folder: Path) -> Built:
    """Two sockets, and firmware that puts no GPU on any of them."""
    files = host("old3", 65000000) | sockets([[0, 1], [2, 3]], cores_each=2) | gpu_nodes(K40_BUSES[:2], [-1, -1])
    return build(folder, files, smi("Tesla K40m", K40_BUSES[:2], 11519, 3, "PHB"))


def nothing_known(folder: Path) -> Built:
    """A container that hides /sys."""
    return build(folder, {})


MACHINES: list[Callable[[Path], Built]] = [
    dgx_like, minwa_like, roce_like, cloud_like, adapter_down, no_numa, nothing_known
]  # fmt: skip
