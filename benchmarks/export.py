"""Exported networks of a run on all of its test images: largest difference of a score from the run's own, accuracy.

    leyden experiment=resnet20_cifar10_short dataset.root=PATH hydra.run.dir=RUN
    python benchmarks/export.py RUN        # less than a minute; needs pip install -e '.[onnx]'

Writes benchmarks/results/export.json. Differences are relative where a score is above 1, as `leyden export` has them.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch
from measurement import ROOT, write_subject
from torch import Tensor

import leyden
from leyden.datasets.cifar10 import CIFAR10

RESULT = ROOT / "benchmarks" / "results" / "export.json"
TITLE = "Exported networks"
TEXT = (
    "Files of `leyden export`, read by torch.export and by ONNX Runtime, on the 10,000 test images of CIFAR-10. The "
    "network is a ResNet-20 after {steps} steps. Differences of scores are relative where a score is above 1."
)
COLUMNS = {"difference": ["largest difference", ".1g"], "accuracy": ["test accuracy", ".2%"], "bytes": ["bytes", ",d"]}
BATCH = 500
Network = Callable[[Tensor], Tensor]


def onnx(file: Path) -> Network:
    session = onnxruntime.InferenceSession(file)
    return lambda images: torch.from_numpy(session.run(["scores"], {"images": images.numpy()})[0])


def pt2(file: Path) -> Network:
    return torch.export.load(file).module()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a run of dataset=cifar10")
    run = leyden.load(parser.parse_args().run)
    assert run.config.dataset is not None
    test = CIFAR10("test", run.config.dataset.arguments["root"])
    labels = torch.tensor(test.labels)

    def scores(network: Network) -> Tensor:
        with torch.no_grad():
            return torch.cat([network(images) for images in test.images.split(BATCH)])

    def row(what: str, found: Tensor, size: int) -> dict[str, object]:
        difference = float(((found - own).abs() / own.abs().clamp(min=1.0)).max())
        accuracy = float((found.argmax(1) == labels).double().mean())
        print(f"{what:10} {difference:10.2g} {accuracy:8.4f} {size:12,d}")
        return {"what": what, "difference": difference, "accuracy": accuracy, "bytes": size}

    own = scores(run.predictor.scores)
    rows = [row("the run itself", own, run.predictor.checkpoint.stat().st_size)]
    with tempfile.TemporaryDirectory() as folder:
        for kind, read in (("pt2", pt2), ("onnx", onnx), ("int8", onnx)):
            file = run.export(kind, Path(folder) / f"network.{kind}")
            rows.append(row(f"`{kind}`", scores(read(file)), file.stat().st_size))
    text = TEXT.format(steps=run.predictor.step)
    write_subject(RESULT, TITLE, text, COLUMNS, "python benchmarks/export.py RUN", rows)


if __name__ == "__main__":
    main()
