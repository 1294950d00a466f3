"""NVIDIA GPUs, from nvidia-smi, and their NUMA nodes, from /sys."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .sysfs import folders_in, number_of, text_of

ASKED = ("index", "name", "pci.bus_id", "memory.total", "pcie.link.gen.max", "uuid")
_ANSWERS_WITHIN_S = 60


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    bus_id: str
    """Bus id as /sys spells it: 0000:1b:00.0."""
    memory_gb: float | None
    """Units of 2^30 bytes."""
    pcie_generation: int | None
    uuid: str
    numa_node: int | None


@dataclass(frozen=True)
class Gpus:
    found: tuple[Gpu, ...] = ()
    nvlink: bool = False
    failure: str = ""
    """Error of an nvidia-smi that is installed but failed."""


def gpus(root: Path = Path("/"), nvidia_smi: str = "nvidia-smi") -> Gpus:
    """All GPUs of the machine by bus id; none without nvidia-smi."""
    try:
        rows = _ask(nvidia_smi, f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits")
        found = tuple(_gpu(line, root) for line in rows.splitlines() if line.count(",") == len(ASKED) - 1)
        nvlink = len(found) > 1 and _are_joined_by_nvlink(_ask(nvidia_smi, "topo", "-m"))
    except FileNotFoundError:
        return Gpus()
    except (subprocess.SubprocessError, OSError) as error:
        said = (getattr(error, "stdout", None) or str(error)).strip().splitlines()
        return Gpus(failure=said[0][:80] if said else type(error).__name__)
    return Gpus(found, nvlink)


def _ask(nvidia_smi: str, *question: str) -> str:
    done = subprocess.run(
        [nvidia_smi, *question], capture_output=True, text=True, timeout=_ANSWERS_WITHIN_S, check=True
    )
    return done.stdout


def _gpu(line: str, root: Path) -> Gpu:
    index, name, bus, memory, generation, uuid = (field.strip() for field in line.split(","))
    bus_id = sysfs_bus_id(bus)
    mebibytes = _number(memory)
    return Gpu(
        int(index), name, bus_id, None if mebibytes is None else round(mebibytes / 1024, 1), _number(generation), uuid,
        number_of(root / f"sys/bus/pci/devices/{bus_id}/numa_node"),
    )  # fmt: skip


def sysfs_bus_id(bus_id: str) -> str:
    """0000:1b:00.0 from nvidia-smi's 00000000:1B:00.0."""
    domain, rest = bus_id.lower().split(":", 1)
    return f"{domain[-4:]}:{rest}"


def _number(field: str) -> int | None:
    return int(field) if field.isdigit() else None  # else [N/A], [Not Supported]


def _are_joined_by_nvlink(matrix: str) -> bool:
    """Whether rows of `nvidia-smi topo -m` name NVLinks; the NV# of its legend does not count."""
    return re.search(r"^GPU\d+\b.*\bNV\d+\b", matrix, re.MULTILINE) is not None


def uuids(root: Path = Path("/")) -> list[str]:
    """UUIDs of the GPUs by bus id, from the driver's folder in /proc, without nvidia-smi."""
    found = (text_of(folder / "information") for folder in folders_in(root / "proc/driver/nvidia/gpus"))
    named = (re.search(r"^GPU UUID:\s*(\S+)", text or "", re.MULTILINE) for text in found)
    return [match[1] for match in named if match]
