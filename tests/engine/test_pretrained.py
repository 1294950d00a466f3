"""model.pretrained: weights of runs, files and public layouts; what does not fit is refused."""

from pathlib import Path
from typing import Any

import public_weights as public
import pytest
import torch
from runs import TINY, Freeze, weights
from safetensors.torch import save_file
from torch import Tensor

from leyden.datasets.image_folder import ImageFolder
from leyden.models.efficientnet_lite0 import EfficientNetLite0
from leyden.models.resnet import ResNet
from leyden.models.vit import ViT
from leyden.trainer.cli.main import main
from leyden.trainer.components.tasks.classification import Classification
from leyden.trainer.config.schema import PinnedWeights, load
from leyden.trainer.engine.init_weights import load_pretrained
from leyden.trainer.entrypoints.start import start

STILL = ["trainer.max_steps=1", "optimizer.lr=1e-30"]


def loaded(model: torch.nn.Module, classes: int, file: Path) -> tuple[Any, str]:
    """The network with a file's weights, in evaluation mode, and the line of the log."""
    task = Classification(model, classes).eval()
    own = {name: value.shape for name, value in task.state_dict().items()}
    line = load_pretrained(task, str(file), own)
    return task.model, line


def saved(state: dict[str, Tensor], path: Path) -> Path:
    save_file({name: value.contiguous() for name, value in state.items()}, path)
    return path


@pytest.mark.parametrize("depth", [18, 50])
def test_a_resnet_of_torchvision_or_timm_computes_what_it_computes_there(tmp_path: Path, depth: Any) -> None:
    state = public.resnet(depth, classes=12)
    images = torch.randn(2, 3, 64, 64)
    network, line = loaded(ResNet(12, (3, 64, 64), depth=depth), 12, saved(state, tmp_path / "w.safetensors"))
    assert line.endswith(f"{len(state)} of {len(state)} tensors")
    torch.testing.assert_close(network(images), public.resnet_logits(state, images, depth), rtol=1e-3, atol=1e-4)
    assert network.stem[1].num_batches_tracked == 7


@pytest.mark.parametrize("names", [public.TIMM, public.TORCHVISION], ids=["timm", "torchvision"])
def test_a_vit_computes_what_it_computes_there(tmp_path: Path, names: dict[str, str]) -> None:
    state = public.vit(names, width=48, depth=3, patch=8, side=32, classes=7)
    images = torch.randn(2, 3, 32, 32)
    network, line = loaded(
        ViT(7, (3, 32, 32), patch=8, width=48, depth=3, heads=3), 7, saved(state, tmp_path / "w.safetensors")
    )
    assert line.endswith(f"{len(state)} of {len(state)} tensors")
    torch.testing.assert_close(network(images), public.vit_logits(names, state, images, 3), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("ours", "theirs", "count"),
    [
        (lambda: ResNet(1000, (3, 224, 224), depth=34), public.resnet(34, empty=True), 21_797_672),
        (lambda: ResNet(1000, (3, 224, 224), depth=101), public.resnet(101, empty=True), 44_549_160),
        (lambda: ViT(1000, (3, 224, 224)), public.vit(public.TORCHVISION, 768, 12, 16, 224, empty=True), 86_567_656),
        (lambda: ViT(1000, (3, 224, 224), width=384, heads=6), public.vit(public.TIMM, 384, 12, 16, 224, empty=True),
         22_050_664),
    ],
    ids=["resnet34", "resnet101", "vit_b_16", "vit_small"],
)  # fmt: skip
def test_the_names_are_complete_at_the_published_sizes(ours: Any, theirs: dict[str, Tensor], count: int) -> None:
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    assert sum(value.numel() for name, value in theirs.items() if not name.endswith(buffers)) == count
    with torch.device("meta"):
        network = ours()
    shapes = {name: value.shape for name, value in network.state_dict().items()}
    fitting = [names for names in network.public_names(shapes).values() if set(names.values()) == set(theirs)]
    assert len(fitting) == 1
    assert all(theirs[its].shape == shapes[name] for name, its in fitting[0].items())


SMALL_PHOTOS = ["model=efficientnet_lite0", "dataset=synthetic", "dataset.samples=8", "batch_size=4"]


def test_true_takes_the_weights_that_the_models_yaml_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    assert main([*SMALL_PHOTOS, "model.pretrained=true", *STILL, "augment=none", f"hydra.run.dir={run_dir}"]) == 0
    node = load(run_dir).model
    assert node is not None
    assert isinstance(node.weights, PinnedWeights)
    theirs = torch.load(node.weights.path, weights_only=True)
    assert "tensors; the output layer starts fresh" in " ".join(capsys.readouterr().out.split())
    found = weights(run_dir)
    for ours, its in (("stem.0", "_conv_stem"), ("blocks.3.expand.0", "_blocks.3._expand_conv"),
                      ("blocks.15.project.1", "_blocks.15._bn2"), ("head.0", "_conv_head")):  # fmt: skip
        assert torch.equal(found[f"model.{ours}.weight"], theirs[f"{its}.weight"])


def test_public_weights_see_the_pixels_that_they_were_trained_with() -> None:
    """(pixel - 127) / 128, of images that ImageFolder has normalized."""
    pixels = torch.randint(256, (2, 3, 5, 5)).double()
    mean, std = (torch.tensor(getattr(ImageFolder, name)).view(3, 1, 1) for name in ("mean", "std"))
    network = EfficientNetLite0(10, (3, 32, 32)).double()
    torch.testing.assert_close(network.pixels((pixels / 255 - mean) / std), (pixels - 127) / 128, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["model.public_weights.package=not_there"], "needs the package not_there, which is not installed"),
        ([f"model.public_weights.sha256={'0' * 64}"], "is not the file that model.public_weights names"),
        (["init_from=somewhere.safetensors"], "both name initial weights"),
    ],
)
def test_packaged_weights_that_are_not_taken(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*SMALL_PHOTOS, "model.pretrained=true", *options, f"hydra.run.dir={tmp_path / 'run'}"])
    error = " ".join(capsys.readouterr().err.split())
    assert code == 2
    assert said in error
    assert not (tmp_path / "run").exists()


def test_another_number_of_classes_gets_a_head_of_its_own(tmp_path: Path) -> None:
    state = public.resnet(18, classes=1000)
    model = ResNet(5, (3, 64, 64), depth=18)
    head = model.classifier.weight.detach().clone()
    network, line = loaded(model, 5, saved(state, tmp_path / "w.safetensors"))
    assert "the output layer starts fresh: model.classifier.bias, model.classifier.weight" in line
    assert torch.equal(network.classifier.weight, head)
    assert torch.equal(network.stem[0].weight, state["conv1.weight"])


def test_a_file_without_a_head_and_without_counters_fits(tmp_path: Path) -> None:
    state = {name: value for name, value in public.resnet(18).items() if not name.startswith("fc.")}
    state = {name: value for name, value in state.items() if "num_batches" not in name}
    network, line = loaded(ResNet(5, (3, 64, 64), depth=18), 5, saved(state, tmp_path / "w.safetensors"))
    assert "the output layer starts fresh" in line
    assert torch.equal(network.stem[0].weight, state["conv1.weight"])


def _without(name: str) -> Any:
    return lambda state: {key: value for key, value in state.items() if key != name}


def _with(name: str, *shape: int) -> Any:
    return lambda state: {**state, name: torch.zeros(shape)}


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_without("layer3.1.bn2.running_var"), "layer3.1.bn2.running_var: missing"),
        (_with("dist_token", 4), "dist_token: not in the network"),
        (_with("conv1.weight", 64, 1, 7, 7), r"conv1.weight: \(64, 1, 7, 7\) for \(64, 3, 7, 7\)"),
        (_with("fc.weight", 1000, 2048), r"fc.weight: \(1000, 2048\) for \(5, 512\)"),
        (lambda state: {"x": torch.zeros(2)}, "does not fit the network"),
        (lambda state: {**state, "bn1.bias": torch.full((64,), torch.nan)}, "stem.1.bias has NaN"),
    ],
    ids=["missing", "too much", "other shape", "other features", "nothing", "not finite"],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: Any, text: str) -> None:
    file = saved(change(public.resnet(18)), tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=text):
        loaded(ResNet(5, (3, 64, 64), depth=18), 5, file)


def test_a_run_and_its_checkpoint_are_sources(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    first = freeze("first", *TINY)
    assert start(first) == 0
    for name, source in (("of a run", first), ("of a file", first / "checkpoints" / "last.ckpt")):
        capsys.readouterr()
        second = freeze(name, *TINY, "seed=1", f"model.pretrained={source}", *STILL)
        assert start(second) == 0
        assert "model.pretrained" in (output := capsys.readouterr().out)
        assert "4 of 4 tensors" in output
        for tensor, value in weights(first).items():
            assert torch.allclose(value, weights(second)[tensor], atol=1e-6)


def test_resuming_does_not_begin_again(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    first = freeze("first", *TINY)
    start(first)
    second = freeze("second", *TINY, f"model.pretrained={first}", "trainer.max_epochs=1")
    assert start(second) == 0
    config = (second / "config.yaml").read_text()
    (second / "config.yaml").write_text(config.replace("max_epochs: 1\n", "max_epochs: 2\n"))
    capsys.readouterr()
    assert start(second, "resume") == 0
    assert "model.pretrained" not in capsys.readouterr().out


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("words", "text", "remedy"),
    [
        (["model.pretrained=weights.pth"], "could execute code", "safetensors.torch.save_file(torch.load(FILE"),
        (["model.pretrained=nowhere"], "there is no such run folder or file", "hub:OWNER/NAME"),
        (["model.pretrained=hub:resnet50"], "is no name of weights on a hub", "timm:resnet50.a1_in1k"),
        (["model.pretrained=hub:a/b/c.bin"], "names a file that is not .safetensors", "model.pretrained=hub:a/b"),
        (["init_from=timm:resnet50.a1_in1k"], "takes runs and files", "model.pretrained=timm:resnet50.a1_in1k"),
        (["model.pretrained=.", "init_from=."], "both name initial weights", "init_from=null"),
        (["model.freeze=[layers.1]", "model.unfreeze_at=25"], "must be less than trainer.max_epochs=25", "=null"),
        (["model.unfreeze_at=3"], "nothing is frozen", "model.freeze"),
        (["model.freeze=[layers.1]", "model.unfreeze_at=3", "strategy=butterfly", "topology.devices_per_node=2"],
         "strategy=butterfly lays out the trained parameters once", "strategy.find_unused_parameters=true"),
        (["model.freeze=[layers.1]", "model.unfreeze_at=3", "strategy=ddp", "topology.devices_per_node=2"],
         "frozen ones have none until model.unfreeze_at", "strategy.find_unused_parameters=true"),
        (["model.freeze=stem"], "model.freeze", ""),
        (["model=null", "model.freeze=[a]", "task._target_=lightning_examples.Plain"], "model is null", "leave it out"),
    ],
)  # fmt: skip
def test_mistakes_are_named(words: list[str], text: str, remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = [] if any(word.startswith("model=") for word in words) else ["model=mlp"]
    assert main([*model, *words]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert text in error
    assert remedy in error


def test_a_models_own_argument_pretrained_stays_its_own() -> None:
    from leyden.trainer.config.schema import Model

    own = Model.model_validate({"_target_": "a.B", "pretrained": True, "width": 3})
    assert own.arguments == {"width": 3, "pretrained": True}
    assert own.weights is None
    ours = Model.model_validate({"_target_": "a.B", "pretrained": "run"})
    assert (ours.arguments, ours.weights) == ({}, "run")
