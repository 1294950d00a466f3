"""Network interfaces, and the one that the default route takes."""

from dataclasses import dataclass
from pathlib import Path

from .reading import folders_in, number_of, text_of


@dataclass(frozen=True)
class Interface:
    name: str
    state: str
    """The kernel's operstate: up, down, unknown, ..."""
    speed_gbit_s: float | None
    hardware: bool
    """Whether a device is behind it: not for lo, bridges, tunnels."""


def interfaces(root: Path = Path("/")) -> list[Interface]:
    """All interfaces but those that are only listed by the kernel's bonding driver."""
    folders = [folder for folder in folders_in(root / "sys/class/net") if folder.is_dir()]
    return [_interface(folder) for folder in folders]


def _interface(folder: Path) -> Interface:
    speed = number_of(folder / "speed")
    return Interface(
        folder.name,
        text_of(folder / "operstate") or "unknown",
        speed / 1000 if speed is not None and speed > 0 else None,
        (folder / "device").exists(),
    )


def default_route(root: Path = Path("/")) -> str | None:
    """The interface that leads to the rest of the world, by /proc/net/route; None where there is no such route."""
    best: tuple[int, str] | None = None
    for line in (text_of(root / "proc/net/route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[1] != "00000000" or fields[7] != "00000000":
            continue
        route = (int(fields[6]), fields[0])
        best = route if best is None or route < best else best
    return best[1] if best else None
