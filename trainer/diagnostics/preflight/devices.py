"""Check that each worker has its own device."""

import os
from collections.abc import Iterator, Sequence

from ...base.errors import Problem
from ...base.log import log
from ...config.schema import Config, workers_on_node
from ...hardware.topology import SHARE, device_kind, shares_gpus


def device_of(kind: str) -> str | None:
    """Unique id of this worker's GPU; None for a worker on the CPU, or without a GPU."""
    if kind != "cuda":
        return None
    import torch

    local_rank = int(os.environ["LOCAL_RANK"])
    if shares_gpus():
        local_rank %= max(1, torch.cuda.device_count())
    if local_rank >= torch.cuda.device_count():
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    # MIG slices of one GPU share its UUID, but have names of their own
    if local_rank < len(visible) and visible[local_rank].strip().startswith("MIG-"):
        return visible[local_rank].strip()
    return str(torch.cuda.get_device_properties(local_rank).uuid)


def device_problems(config: Config) -> Iterator[Problem]:
    """Problems of unusable CUDA, or of fewer visible GPUs than workers.

    Causes: a job script or container that hides some; MIG, of which CUDA shows one slice.
    """
    if device_kind(config.topology) != "cuda":
        return
    import torch

    there, wanted = torch.cuda.device_count(), workers_on_node(config)
    if there >= wanted or (there and shares_gpus()):
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if there == 0:
        text = f"torch cannot use CUDA here: {_why_unusable()}"
        text += f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
        yield Problem("topology.device.kind", text, "cuda", "topology.device.kind=cpu")
        return
    text = f"CUDA sees {there} GPU{'s' * (there != 1)} here, for {wanted} workers"
    text += f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
    text += "; of a GPU in MIG mode it sees one slice" if "MIG-" in (visible or "") else ""
    yield Problem("topology.devices_per_node", text, wanted, f"topology.devices_per_node={max(1, there)}")


def _why_unusable() -> str:
    """torch's error when CUDA is initialized."""
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return "it sees no GPU"


def shared_devices(devices: Sequence[str | None], nodes: Sequence[str]) -> list[Problem]:
    """Problems of devices shared by several workers. `devices`: by rank."""
    users: dict[str, list[int]] = {}
    for rank, device in enumerate(devices):
        if device is not None:
            users.setdefault(device, []).append(rank)
    shared = {device: ranks for device, ranks in users.items() if len(ranks) > 1}
    if not shared:
        return []
    device, ranks = next(iter(shared.items()))
    if shares_gpus():
        log.warning("preflight: ranks %s share the GPU %s (%s=1, for tests)", ", ".join(map(str, ranks)), device, SHARE)
        return []
    text = f"{nodes[ranks[0]]}: ranks {', '.join(map(str, ranks))} would share the GPU {device}"
    text += f" (and {len(shared) - 1} more are shared)" if len(shared) > 1 else ""
    remedy = "one agent a host, and a CUDA_VISIBLE_DEVICES that names each GPU once"
    return [Problem("topology.devices_per_node", text, remedy=remedy)]
