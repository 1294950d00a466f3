"""A hand-written training loop on the network of a run: python -m ...plain_loop RUN_DIR writes plain_loop.json."""

import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....base.atomic_file import write_atomically
from ....config.faults import build_checked
from ....config.schema import Config, load
from ....config.targets import make_importable
from ....hardware.topology import device_kind
from .child_runs import LOOP_RESULT

WARM_UP = 5


def measure_loop(config: Config) -> float:
    """Samples per second: forward, backward and SGD's step on one batch that stays on the device."""
    device = torch.device(device_kind(config.topology))
    data: dict[str, Any] = config.dataset.arguments
    assert config.model is not None
    network: nn.Module = build_checked(
        "model", config.model, classes=data["classes"], image_shape=data["image_shape"], seed=config.seed
    )
    channels_last = torch.channels_last if config.trainer.channels_last else torch.contiguous_format
    network.to(device).to(memory_format=channels_last)  # pyright: ignore[reportCallIssue]  # torch's stub lacks it
    images = torch.randn(config.batch_size, *data["image_shape"], device=device).to(memory_format=channels_last)
    labels = torch.randint(data["classes"], (config.batch_size,), device=device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    begin = 0.0
    for step in range(config.trainer.max_steps):
        if step == WARM_UP:
            begin = _now(device)
        _step(network, images, labels, optimizer, _precision(config, device))
    return (config.trainer.max_steps - WARM_UP) * config.batch_size / (_now(device) - begin)


def _step(network: nn.Module, images: Tensor, labels: Tensor, optimizer: torch.optim.Optimizer, precision: Any) -> None:
    optimizer.zero_grad(set_to_none=True)
    with precision:
        loss = F.cross_entropy(network(images), labels)
    loss.backward()
    optimizer.step()


def _precision(config: Config, device: torch.device) -> AbstractContextManager[Any]:
    if config.trainer.precision == "bf16-mixed":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    run_dir = Path(sys.argv[1])
    config = load(run_dir)
    make_importable(config)
    write_atomically(run_dir / LOOP_RESULT, json.dumps({"samples_per_second": measure_loop(config)}) + "\n")


if __name__ == "__main__":
    main()
