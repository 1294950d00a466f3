"""How long a person waits: for help, for an error, for the first optimizer step.

    python benchmarks/startup.py            # about three minutes on a quiet machine

Every line is the median of interleaved process starts; only ratios within one table mean anything.
"""

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

PLAIN = """
import os
import hydra
from omegaconf import DictConfig

@hydra.main(config_path="conf", config_name="plain", version_base=None)
def main(config: DictConfig) -> None:
    import lightning
    import torch
    torch.manual_seed(config.seed)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=config.lr)
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
    torch.nn.functional.cross_entropy(net(images), labels).backward()
    optimizer.step()
    os._exit(7)

main()
"""

FIRST_STEP = """
import os

class FirstStep:
    def on_step_end(self, state):
        os._exit(7)
"""

LEYDEN = [sys.executable, "-m", "leyden"]


def commands(folder: Path) -> dict[str, list[str]]:
    (folder / "conf").mkdir()
    (folder / "conf" / "plain.yaml").write_text("seed: 0\nlr: 0.01\n")
    (folder / "plain.py").write_text(PLAIN)
    (folder / "first_step.py").write_text(FIRST_STEP)
    callbacks = folder / "mine" / "callbacks"
    callbacks.mkdir(parents=True)
    (callbacks / "first_step.yaml").write_text("first_step:\n  _target_: first_step.FirstStep\n")
    train = ["dataset=synthetic", "model=mlp", "model.hidden=[256]", "callbacks=[default,first_step]"]
    return {
        "import torch": [sys.executable, "-c", "import torch"],
        "leyden --help": [*LEYDEN, "--help"],
        "error: wrong group": [*LEYDEN, "model=lenet6"],
        "error: wrong key": [*LEYDEN, "trainer.max_epoch=3"],
        "error: wrong type": [*LEYDEN, "trainer.max_epochs=three"],
        "plain Hydra script, first step": [sys.executable, "plain.py"],
        "leyden, first step": [*LEYDEN, "--config-dir", "mine", *train],
    }


def seconds(command: list[str], folder: Path, expected: int) -> float:
    began = perf_counter()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    taken = perf_counter() - began
    assert done.returncode == expected, f"{command} ended with {done.returncode}, not {expected}"
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        contestants = commands(folder)
        times: dict[str, list[float]] = {contestant: [] for contestant in contestants}
        for number in range(rounds + 1):
            for contestant in random.sample(list(contestants), len(contestants)):
                expected = 2 if "error" in contestant else 7 if "step" in contestant else 0
                taken = seconds(contestants[contestant], folder, expected)
                if number > 0:  # the first round fills the caches of the disk
                    times[contestant].append(taken)
    median = {contestant: statistics.median(values) for contestant, values in times.items()}
    print(f"{'':34}{'seconds':>8}{'ratio':>8}  to")
    for contestant, value in median.items():
        base = "plain Hydra script, first step" if "step" in contestant else "import torch"
        print(f"{contestant:34}{value:8.2f}{value / median[base]:8.2f}  {base}")


if __name__ == "__main__":
    main()
