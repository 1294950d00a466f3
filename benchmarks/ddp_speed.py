"""strategy=ddp against a hand-written script with torch's DistributedDataParallel: samples a second, two workers.

    python benchmarks/ddp_speed.py

ResNet-20, batch 64 a worker, SGD with momentum; the same prepared tensors, the same two processes, in turns. The
figure is the median over the rounds of Leyden's samples/s by the script's in the same round.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist
import torch.nn.functional as F
from hosts import freeze
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from leyden.models.resnet_cifar import ResNetCIFAR
from leyden.trainer.base.log import close_log
from leyden.trainer.base.signals import StopRequest
from leyden.trainer.config.job import JobSpec
from leyden.trainer.entrypoints.worker import run_worker

BATCH, STEPS, WORKERS = 64, 25, 2
Batch = tuple[Tensor, Tensor]


class Prepared:
    """A worker's batches, made once; keeps the time from the fourth asked for to the last."""

    seconds = 0.0

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(int(os.environ.get("RANK", "0")))
        self.batches = [
            (torch.randn(BATCH, 3, 32, 32, generator=generator), torch.randint(10, (BATCH,), generator=generator))
            for _ in range(STEPS + 4)
        ]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        yield from self.batches[:3]
        began = perf_counter()
        yield from self.batches[3:-1]
        Prepared.seconds = perf_counter() - began
        yield self.batches[-1]


class PreparedData(LightningDataModule):
    classes = 10
    image_shape = (3, 32, 32)

    def train_dataloader(self) -> Prepared:
        return PREPARED


PREPARED = Prepared()


def hand_written() -> float:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DistributedDataParallel(ResNetCIFAR(10, (3, 32, 32)), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for images, labels in PREPARED:
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()
    return BATCH * WORKERS * STEPS / Prepared.seconds


def leyden(run_dir: Path) -> float:
    run_worker(JobSpec.load(run_dir), StopRequest())
    close_log()
    dist.barrier()
    dist.destroy_process_group()
    return BATCH * WORKERS * STEPS / Prepared.seconds


def worker(rounds: int, folder: Path) -> None:
    torch.set_num_threads(1)
    port = int(os.environ["MASTER_PORT"])
    ratios: list[float] = []
    for number in range(rounds):
        os.environ["MASTER_PORT"] = str(port + 2 * number)
        theirs = hand_written()
        os.environ["MASTER_PORT"] = str(port + 2 * number + 1)
        ours = leyden(folder / str(number))
        ratios.append(ours / theirs)
        if os.environ["RANK"] == "0":
            print(f"samples/s: script {theirs:7.1f}   Leyden {ours:7.1f}   ratio {ours / theirs:.3f}", file=sys.stderr)
    if os.environ["RANK"] == "0":
        print(f"median ratio {statistics.median(ratios):.3f}", file=sys.stderr)


def launch(rounds: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            freeze(
                Path(folder) / str(number), "dataset=synthetic", "~dataset.samples", "~dataset.classes",
                "~dataset.image_shape", "dataset._target_=ddp_speed.PreparedData", "model=resnet20", "strategy=ddp",
                f"topology.devices_per_node={WORKERS}", f"batch_size={BATCH * WORKERS}", "optimizer.lr=0.1",
                "trainer.max_epochs=1", "trainer.enable_progress_bar=false", "augment=none",
            )  # fmt: skip
        environment = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORKERS), "GROUP_RANK": "0",
            "LOCAL_WORLD_SIZE": str(WORKERS), "TORCHELASTIC_RUN_ID": "benchmark", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, __file__, "--rounds", str(rounds), "--folder", folder]
        workers = [
            subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(WORKERS)
        ]
        sys.exit(max(process.wait() for process in workers))


if __name__ == "__main__":
    sys.modules["ddp_speed"] = sys.modules["__main__"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is None:
        launch(options.rounds)
    else:
        worker(options.rounds, Path(options.folder))
