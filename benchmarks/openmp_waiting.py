"""Waiting threads of OpenMP, spinning or sleeping, on a quiet machine and beside processes that want its cores.

    python benchmarks/openmp_waiting.py            # ten minutes; --rounds 3

The forward and backward passes of LeNet-5 and ResNet-20, batch 64, on all cores, in a process for each measurement, as
OpenMP reads OMP_WAIT_POLICY when torch is loaded; contestants in a new random order in each round. Beside it no other
process, or one for each core that computes without end. Figures are medians of images/s; the ratio is the median of the
rounds' to OpenMP's own default. Writes benchmarks/results/openmp_waiting.json.
"""

import argparse
import os
import statistics
import subprocess
import sys
from time import perf_counter

from measurement import ROOT, write_subject
from rounds import in_turns
from taken_cores import taken_cores

BATCH, WARM_UP, SECONDS = 64, 3, 6.0
RESULT = ROOT / "benchmarks" / "results" / "openmp_waiting.json"
TITLE = "Threads that wait, on a shared machine"
TEXT = (
    "Forward and backward passes on all cores, batch 64. OpenMP's threads spin while they wait for each other, on "
    "cores that other processes want, too; with `OMP_WAIT_POLICY=passive` they sleep. A run on the CPU that starts on "
    "a busy machine advises it."
)
COLUMNS = {
    "spinning": ["images/s, OpenMP's default", ".0f"], "sleeping": ["images/s, passive", ".0f"],
    "ratio": ["times the default", ".2f"],
}  # fmt: skip
NETWORKS = ("LeNet-5", "ResNet-20")
POLICIES = {"spinning": "", "sleeping": "passive"}


def train(network: str) -> None:
    """Print the images/s of this process."""
    import torch
    from torch.nn.functional import cross_entropy

    from leyden.models.lenet5 import LeNet5
    from leyden.models.resnet_cifar import ResNetCIFAR

    net = (LeNet5 if network == "LeNet-5" else ResNetCIFAR)(10, (3, 32, 32))
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    steps, began = -WARM_UP, perf_counter()
    while steps <= 0 or perf_counter() - began < SECONDS:
        if steps == 0:
            began = perf_counter()
        cross_entropy(net(images), labels).backward()
        steps += 1
    print(BATCH * steps / (perf_counter() - began))


def measured(contestant: tuple[str, str], _: int) -> float:
    network, policy = contestant
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    environment |= {"OMP_WAIT_POLICY": policy} if policy else {}
    command = [sys.executable, __file__, "--train", network]
    return float(subprocess.check_output(command, env=environment, text=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", choices=NETWORKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    cores, rows = len(os.sched_getaffinity(0)), []
    contestants = {f"{net} {name}": (net, policy) for net in NETWORKS for name, policy in POLICIES.items()}
    for count in (0, cores):
        with taken_cores(count):
            found = in_turns(contestants, options.rounds, measured)
        for net in NETWORKS:
            spinning, sleeping = (found[f"{net} {name}"] for name in POLICIES)
            ratio = statistics.median(one / other for one, other in zip(sleeping, spinning, strict=True))
            rows.append({
                "what": f"{net}, {f'beside {count} busy processes' if count else 'alone'}",
                "spinning": statistics.median(spinning), "sleeping": statistics.median(sleeping), "ratio": ratio,
            })  # fmt: skip
            print("{what:40}{spinning:8.0f}{sleeping:8.0f}{ratio:8.2f}".format(**rows[-1]), flush=True)
    write_subject(RESULT, TITLE, TEXT, COLUMNS, f"python benchmarks/openmp_waiting.py --rounds {options.rounds}", rows)


if __name__ == "__main__":
    main()
