"""GPU battery, call 1: one process. CPU = CUDA, dropout, resume, checkpoints, host waits, memory.

    python benchmarks/gpu_1_correctness.py [--rehearse] [--only TEXT] [--again]

The most valuable checks come first; gpu_battery.py says how calls are resumed.
"""

import copy
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import yaml
from gpu_battery import Checks, Outcome, Skipped, main
from gpu_sanitizer import sanitized
from torch import Tensor, nn

import leyden.conf
from leyden.trainer.cli.main import main as leyden_main
from leyden.trainer.config.locate import locate
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.core.keyed.dropout import KeyedAlphaDropout, KeyedDropout, KeyedDropPath, SampleKeys
from leyden.trainer.core.keyed.modules import with_keyed_layers

MODELS = Path(leyden.conf.__file__).parent / "model"
SHAPES = {"lenet5": (1, 32, 32), "mlp": (1, 8, 8), "resnet20": (3, 32, 32), "vgg_small": (3, 32, 32),
          "easgd_cifar7": (3, 28, 28), "local_net": (1, 32, 32), "easgd_imagenet11": (3, 221, 221),
          "cots_autoencoder": (3, 96, 96)}  # fmt: skip
SMALLER = {"cots_autoencoder": {"maps": 4, "stages": 2, "rf": 5, "pool": 3, "lcn": 3}}
"""The 1.2 billion parameters of the published one would take minutes in float64."""
REHEARSED = ("lenet5", "mlp", "resnet20", "vgg_small", "local_net", "cots_autoencoder")
FLOAT64 = 1e-9
NET = ["model=vgg_small", "model.stages=[[4],[6]]", "model.hidden=[19,13]", "model.dropout=0.3", "dataset=digits",
       "dataset.image_size=8"]  # fmt: skip
SHORT = ["trainer.max_epochs=1", "trainer.limit_val_batches=0", "trainer.limit_test_batches=0", "schedule=constant",
         "trainer.enable_progress_bar=false", "callbacks.checkpoint.monitor=null"]  # fmt: skip
FILTERS = [*SHORT, "model=local_net", "model.maps=[4,3]", "model.rf=4", "model.lcn=3", "dataset=digits",
           "dataset.image_size=16", "trainer.max_steps=2"]  # fmt: skip
DETERMINISTIC = "trainer.deterministic=true"
DRAWS = ["dataset=synthetic", "~dataset.samples", "~dataset.classes", "~dataset.image_shape", "~model",
         "batch_size=32", "dataset._target_=gpu_examples.Points",
         "task._target_=gpu_examples.Drawing", "~task.label_smoothing"]  # fmt: skip
RESUMED = {
    "32-true": NET,
    "bf16-mixed": [*NET, "trainer.precision=bf16-mixed"],
    "16-mixed": [*NET, "trainer.precision=16-mixed"],
    "channels_last": [*NET, "trainer.channels_last=true"],
    "a data module, and a task that draws on the device": DRAWS,
    "compile": [*NET, "trainer.compile=true"],
}


def checks(device: str, rehearse: bool) -> Checks:
    """Every check of this call, the most valuable first."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it once in a process
    models = [path.stem for path in sorted(MODELS.glob("*.yaml")) if path.stem != "timm"]
    if rehearse:
        models = [name for name in models if name in REHEARSED]
    small = sorted(models, key=lambda name: name not in REHEARSED)
    made: dict[str, Callable[[], Outcome]] = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        made[f"dropout masks: CPU = device, {dtype}"] = partial(dropout_masks, device, dtype)
    made |= {f"float64: CPU = device, {name}": partial(equal_on_device, device, name) for name in small}
    made |= {f"resumed = uninterrupted, {name}": partial(resumed, device, options) for name, options in RESUMED.items()}
    made["checkpoint of the CPU, resumed on the device"] = partial(crossed, "cpu", device)
    made["checkpoint of the device, resumed on the CPU"] = partial(crossed, device, "cpu")
    for name in ("32-true", "bf16-mixed"):
        made[f"no host wait between two logs, {name}"] = partial(host_waits, device, RESUMED[name])
    made["no leak between steps 10 and 200"] = partial(leak, device, rehearse)
    made["out of memory is one message"] = partial(out_of_memory, device)
    made["compute-sanitizer: untied filters"] = partial(sanitized, device, [*FILTERS, f"topology.device.kind={device}"])
    return made


def dropout_masks(device: str, dtype: torch.dtype) -> Outcome:
    """Units that the device drops and the CPU does not, or the other way round."""
    differing = 0
    keys = torch.randint(0, 2**62, (16,), generator=torch.Generator().manual_seed(0))
    for make in (
        lambda sample_keys: KeyedDropout(0.3, 7, 0, sample_keys),
        lambda sample_keys: KeyedDropout(0.3, 7, 2, sample_keys),
        lambda sample_keys: KeyedAlphaDropout(0.3, 7, sample_keys, False),
        lambda sample_keys: KeyedDropPath(0.3, 7, sample_keys, True),
    ):  # fmt: skip
        masks: list[Tensor] = []
        for where in ("cpu", device):
            sample_keys = SampleKeys(torch.device(where))
            layer: KeyedDropout = make(sample_keys)
            sample_keys.set(keys)
            dropped = layer.draw_mask(torch.ones(16, 8, 9, 9, dtype=dtype, device=where))
            assert dropped is not None
            masks.append(dropped.cpu())
        differing += int((masks[0] != masks[1]).sum())
    return Outcome(differing, 0)


def equal_on_device(device: str, name: str) -> Outcome:
    """Largest relative distance of outputs and gradients in float64, dropout included."""
    shape = SHAPES.get(name, (3, 224, 224))
    values = {**yaml.safe_load((MODELS / f"{name}.yaml").read_text()), **SMALLER.get(name, {})}
    target = locate(values.pop("_target_"))
    values.pop("parallel", None)
    known = {"classes": 10, "image_shape": list(shape), "seed": 0}
    values |= {key: value for key, value in known.items() if key in inspect.signature(target).parameters}
    torch.manual_seed(0)
    network: nn.Module = target(**values).double().train()
    images = torch.randn(2, *shape, dtype=torch.float64)
    keys = torch.tensor([2**40 + 1, 3**30])
    cpu = _gradients(copy.deepcopy(network), images, keys, "cpu")
    found = _gradients(network, images, keys, device)
    worst = max(float((found[n] - cpu[n]).norm() / max(1e-30, float(cpu[n].norm()))) for n in cpu)
    return Outcome(worst, FLOAT64, f"{sum(p.numel() for p in network.parameters()):,} parameters")


def _gradients(network: nn.Module, images: Tensor, keys: Tensor, device: str) -> dict[str, Tensor]:
    sample_keys = SampleKeys(torch.device(device))
    network = with_keyed_layers(nn.Sequential(network.to(device)), sample_keys)
    sample_keys.set(keys)
    output = network(images.to(device))
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output.cpu()).to(device)
    (output * weights).sum().backward()
    found = {name: p.grad.cpu() for name, p in network.named_parameters() if p.grad is not None}
    return {**found, "output": output.detach().cpu()}


def train(folder: Path, device: str, options: Sequence[str], code: int = 0) -> str:
    """`leyden` in this process. Returns what it printed."""
    return _leyden([*options, f"topology.device.kind={device}", f"hydra.run.dir='{folder}'"], code)


def _leyden(words: Sequence[str], code: int = 0) -> str:
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        found = leyden_main(list(words))
    if found != code:
        raise RuntimeError(f"leyden {' '.join(words)}: exit code {found}\n{printed.getvalue()[-1500:]}")
    return printed.getvalue()


def weights(folder: Path) -> dict[str, Tensor]:
    content: dict[str, Any] = checkpoint_io.read(folder / "checkpoints" / "last.ckpt")
    return {name: tensor.cpu() for name, tensor in content["model"].items()}


def apart(one: Path, other: Path) -> float:
    a, b = weights(one), weights(other)
    return max(float((a[n].double() - b[n].double()).norm() / max(1e-30, float(b[n].double().norm()))) for n in b)


def resumed(device: str, options: Sequence[str]) -> Outcome:
    """A run of six steps against one of three that is resumed."""
    if device == "cpu" and "trainer.precision=16-mixed" in options:
        raise Skipped("16-mixed needs CUDA")
    with tempfile.TemporaryDirectory() as folder:
        whole, cut = Path(folder) / "whole", Path(folder) / "cut"
        train(whole, device, [*options, *SHORT, DETERMINISTIC, "trainer.max_steps=6"])
        train(cut, device, [*options, *SHORT, DETERMINISTIC, "trainer.max_steps=3"])
        _leyden(["resume", str(cut), "trainer.max_steps=6"])
        return Outcome(apart(cut, whole), 0.0)


def crossed(first: str, second: str) -> Outcome:
    """Three steps here and three there against six on the CPU, in float64."""
    options = [*NET, *SHORT, "trainer.precision=64-true"]
    with tempfile.TemporaryDirectory() as folder:
        whole, cut = Path(folder) / "whole", Path(folder) / "cut"
        train(whole, "cpu", [*options, "trainer.max_steps=6"])
        train(cut, first, [*options, "trainer.max_steps=3"])
        _leyden(["resume", str(cut), "trainer.max_steps=6", f"topology.device.kind={second}"])
        return Outcome(apart(cut, whole), FLOAT64)


def host_waits(device: str, options: Sequence[str]) -> Outcome:
    """torch.cuda.set_sync_debug_mode("error") from the third step on; logs every 50 steps."""
    waits = "+callbacks.waits._target_=leyden.trainer.components.callbacks.faults.RefuseHostWaits"
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder) / "run", device, [*options, *SHORT, "trainer.max_steps=12", waits])
    return Outcome(0, 0, "" if device == "cuda" else "rehearsed: the CPU's calls all wait")


def leak(device: str, rehearse: bool) -> Outcome:
    """Bytes on the device after step 200 beyond those after step 10."""
    first, last = (2, 10) if rehearse else (10, 200)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bytes.json"
        callback = "{_target_: gpu_examples.MemoryAt, file: '" + str(file) + f"', steps: [{first},{last}]" + "}"
        options = [*NET, *SHORT, f"trainer.max_steps={last}", f"+callbacks.memory={callback}"]
        train(Path(folder) / "run", device, [*options, "trainer.max_epochs=20"])
        found = json.loads(file.read_text())
    return Outcome(found[str(last)] - found[str(first)], 0)


def out_of_memory(device: str) -> Outcome:
    """A batch that no device holds ends with one message and exit code 1."""
    if device == "cpu":
        raise Skipped("the host would swap")
    with tempfile.TemporaryDirectory() as folder:
        options = ["dataset=synthetic", "dataset.image_shape=[3,224,224]", "dataset.samples=4096", "augment=none",
                   "model=resnet50", "batch_size=4096", *SHORT, "trainer.max_steps=2"]  # fmt: skip
        text = train(Path(folder) / "run", device, options, code=1)
    said = "out of memory in step 1" in text and "Traceback" not in text
    return Outcome(0 if said else 1, 0, text.strip().splitlines()[-1][:200])


if __name__ == "__main__":
    sys.exit(main(1, checks, __doc__))
