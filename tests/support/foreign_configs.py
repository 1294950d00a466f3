"""Configs of another user's run that name what would execute code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def edited(folder: Path, changes: Mapping[str, Any]) -> None:
    values = yaml.safe_load((folder / "config.yaml").read_text())
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = values
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(values))


FOREIGN: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "a class of his own": ({"model": {"_target_": "evil.Net"}}, "evil.Net"),
    "an installed function": ({"model": {"_target_": "timm.create_model", "name": "x"}}, "timm.create_model"),
    "a function of torch": ({"task.weight": {"_target_": "torch.tensor", "data": [1]}}, "torch.tensor"),
    "a function of torch in a list": ({"model.hidden": [{"_target_": "torch.ones", "size": [9]}]}, "torch.ones"),
    "torch.hub": ({"model": {"_target_": "torch.hub.load", "repo_or_dir": ".", "source": "local"}}, "torch.hub.load"),
    "a class of torch of another kind": (
        {"dataset.order": {"_target_": "torch.utils.data.DataLoader"}}, "torch.utils.data.DataLoader"),
    "a class method": ({"model.norm": {"_target_": "torch.nn.Embedding.from_pretrained"}}, "from_pretrained"),
    "an alias": ({"model.norm": {"_target_": "torch.nn.os.system"}}, "torch.nn.os.system"),
    "a metric that loads a network": (
        {"task.metric": {"_target_": "torchmetrics.image.fid.FrechetInceptionDistance"}}, "FrechetInceptionDistance"),
    "a function of Leyden": ({"model": {"_target_": "leyden.models.resnet.conv"}}, "leyden.models.resnet.conv"),
    "weights from elsewhere": (
        {"model": {"_target_": "leyden.models.timm_model.TimmModel", "name": "hf-hub:a/b"}}, "hf-hub:a/b"),
    "a folder to write into": (
        {"dataset.stage_dir": "/tmp"}, "dataset.stage_dir"),
    "a measurement that writes a file": (
        {"doctor": {"write": "/tmp/x"}}, "doctor"),
    "trials to train": (
        {"pipeline": {"trials": ["../mine"]}}, "pipeline"),
    "a key of later": (
        {"trainer.later": "/tmp/x"}, "trainer.later"),
    "processes elsewhere": (
        {"topology.launcher": "node"}, "topology.launcher"),
    "lines of a script": (
        {"topology.launcher": "slurm", "topology.slurm.setup": ["touch canary"]}, "topology.launcher"),
    "a logger as an argument": (
        {"task.a": {"_target_": "leyden.trainer.components.loggers.mlflow_logger.MLflow", "save_dir": "canary"}},
        "task.a._target_"),
}  # fmt: skip
