"""Checkpoints that are well-formed and wrong: one change each; pickles that take memory, time, or execute code."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Change = Callable[[dict[str, Any]], None]


def at(*keys: str, value: Any) -> Change:
    def change(content: dict[str, Any]) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return change


def without(*keys: str) -> Change:
    def change(content: dict[str, Any]) -> None:
        for key in keys[:-1]:
            content = content[key]
        del content[keys[-1]]

    return change


def spoil_weight(value: float) -> Change:
    def change(content: dict[str, Any]) -> None:
        next(iter(content["model"].values())).view(-1)[0] = value

    return change


def other_shape(content: dict[str, Any]) -> None:
    name = next(iter(content["model"]))
    content["model"][name] = torch.zeros(3, 5)


def no_weight(content: dict[str, Any]) -> None:
    content["model"].popitem()


def sparse_weight(content: dict[str, Any]) -> None:
    name = next(iter(content["model"]))
    content["model"][name] = content["model"][name].to_sparse()


def first_group(content: dict[str, Any]) -> dict[str, Any]:
    return content["optimizer"]["param_groups"][0]


def of_group(key: str, value: Any) -> Change:
    return lambda content: first_group(content).update({key: value})


def of_first_state(key: str, value: Any) -> Change:
    return lambda content: content["optimizer"]["state"][0].update({key: value})


def in_last_momentum(value: float) -> Change:
    """Of the last parameter: each is looked at."""
    return lambda content: list(content["optimizer"]["state"].values())[-1]["momentum_buffer"].view(-1)[-1].fill_(value)


def of_schedule(key: str, value: Any) -> Change:
    return lambda content: content["schedules"][0].update({key: value})


def of_epoch_metric(name: Any, sums: Any) -> Change:
    entry = {"flags": [False, True, False, True], "reduction": "mean", "sum": sums, "metric": None}
    return lambda content: content["epoch_metrics"].update({name: entry})


WRONG: dict[str, tuple[Change, str]] = {
    "no model": (without("model"), "it holds no model"),
    "model of another type": (at("model", value=[1]), "its `model` is of type list"),
    "a weight is missing": (no_weight, "which the model has"),
    "other shapes": (other_shape, "has shape (3, 5)"),
    "NaN": (spoil_weight(float("nan")), "NaN or infinite"),
    "infinite": (spoil_weight(float("inf")), "NaN or infinite"),
    "unknown position": (at("position", "run_dir", value="/tmp"), "unknown keys: run_dir"),
    "position overwrites a method": (at("position", "save_wanted", value=True), "unknown keys: save_wanted"),
    "text for a step": (at("position", "step", value="36"), "step=36"),
    "truth for a step": (at("position", "epoch", value=True), "epoch=bool"),
    "negative": (at("position", "samples", value=-1), "samples=-1"),
    "huge step": (at("position", "step", value=10**15), "its name says step 36"),
    "endless step": (at("position", "step", value=10**40), "its position has step=1000"),
    "no position": (without("position"), "it lacks position"),
    "no step": (without("position", "step"), "lacks step"),
    "no optimizer": (without("optimizer"), "it lacks optimizer"),
    "sparse": (sparse_weight, "contains code (`torch._utils._rebuild_sparse_tensor`)"),
    "a state of numbers": (at("optimizer", "state", value={0: 1}), "its optimizer's state"),
    "groups of numbers": (at("optimizer", "param_groups", value=[1]), "its optimizer's groups"),
    "fewer than no shards": (at("shards", value=-1), "declares -1 shards"),
    "servers": (at("servers", value="many"), "its `servers` is of type str"),
    "momentum of another shape": (of_first_state("momentum_buffer", torch.zeros(3, 5)), "its state of a parameter"),
    "momentum that is a text": (of_first_state("momentum_buffer", "x"), "its state of a parameter"),
    "momentum that is NaN": (in_last_momentum(torch.nan), "a step with it gives weights that"),
    "momentum that is infinite": (in_last_momentum(torch.inf), "a step with it gives weights that"),
    "a schedule's epoch before the first": (of_schedule("last_epoch", -(10**9)), "last_epoch is -1000000000"),
    "a schedule's epoch in years": (of_schedule("last_epoch", 10**9), "WarmupCosine.last_epoch is 1000000000"),
    "lr a text": (of_group("lr", "fast"), "param_groups.0.lr is of type str"),
    "lr NaN": (of_group("lr", float("nan")), "param_groups.0.lr is nan"),
    "the group's momentum a text": (of_group("momentum", "x"), "param_groups.0.momentum is of type str"),
    "the group's momentum NaN": (of_group("momentum", float("nan")), "param_groups.0.momentum is nan"),
    "a group without momentum": (lambda content: first_group(content).pop("momentum"), "param_groups.0 lacks momentum"),
    "a schedule's epoch a text": (of_schedule("last_epoch", "x"), "last_epoch is of type str"),
    "a schedule's rates texts": (of_schedule("base_lrs", ["x"]), "base_lrs.0 is of type str"),
    "a schedule's rates a number": (of_schedule("_last_lr", 1.0), "_last_lr is 1.0"),
    "a session without its first step": (lambda content: content["sessions"][0].pop("from_step"), "lacks one of"),
    "a metric without a name": (lambda content: content["metrics"].update({7: 1.0}), "its `metrics` are no names"),
    "a metric that is a text": (lambda content: content["metrics"].update(loss="x"), "its `metrics` are no names"),
    "a schedule's step a number": (of_schedule("step", 5), "WarmupCosine.step is no setting"),
    "a schedule's optimizer a number": (of_schedule("optimizer", 5), "WarmupCosine.optimizer is no setting"),
    "an lr beyond float32": (of_group("lr", 1e300), "its state of a parameter"),
    "a session with a tensor": (lambda content: content["sessions"][0].update(more=torch.ones(1)), "its `sessions`"),
    "the best of texts": (at("callbacks", "checkpoint", "best", value=[["x", "y"]]), "its `callbacks.checkpoint`"),
    "the best of nothing": (at("callbacks", "checkpoint", "best", value=[[None, 3]]), "its `callbacks.checkpoint`"),
    "an order of no partitions": (at("data", value={"partition_orders": {0: [5]}}), "its `data` cannot be restored"),
    "sums of an epoch that are lists": (of_epoch_metric("a", [[1.0, 2.0], 3.0]), "its `epoch_metrics`"),
    "sums of an epoch without a name": (of_epoch_metric(5, [1.0, 2.0]), "its `epoch_metrics` cannot be restored"),
    "seconds that are none": (at("seconds", value=float("nan")), "its `seconds` are nan"),
    "a callback's bytes": (at("callbacks", "mine", value=b"x"), "contains code (`_codecs.encode`)"),
    "memory": (at("callbacks", "mine", value=bytearray(8)), "contains code (`__builtin__.bytearray`)"),
    "random numbers": (at("random", value=[{}]), "its `random` cannot be restored"),
    "no groups": (at("optimizer", "param_groups", value=[]), "its `optimizer` cannot be restored"),
    "a number for a schedule": (at("schedules", value=[5]), "its `schedules` cannot be restored"),
    "other generators": (at("random", value=[{"torch": torch.zeros(3), "python": [1], "numpy": []}]), "its `random`"),
    "no session": (at("sessions", value=[{}]), "its `sessions` cannot be restored"),
    "metrics of the epoch": (at("epoch_metrics", value={"a": 5}), "its `epoch_metrics` cannot be restored"),
}


class Evil:
    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)


def container(path: Path, opcodes: bytes) -> Path:
    """A zip as torch.save writes it around a pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", opcodes)
        archive.writestr("x/version", "3\n")
    return path


_TEXT = b"X\x01\0\0\0a"
_TWICE = b"(h\x00h\x00tq\x00" * 40
"""A tuple that holds the one before twice, 40 times."""
OPCODES: dict[str, tuple[bytes, str]] = {
    "memory": (b"c__builtin__\nbytearray\n\x8a\x05\0\0\0\x80\x01\x85R.", "contains code (`__builtin__.bytearray`)"),
    "a codec": (b"c_codecs\nencode\n" + _TEXT + b"X\x03\0\0\0hex\x86R.", "contains code (`_codecs.encode`)"),
    "a storage of memory": (b"ctorch\nFloatStorage\n\x8a\x05\0\0\0\x80\x01\x85R.", "calls what is no function"),
    "tuples of tuples": (b"K\x01\x85q\x00" + _TWICE + b".", "stands for more than"),
    "for a key": (b"}K\x01\x85q\x00" + _TWICE + b"K\x01s.", "stands for more than"),
    "lists filled from the top": (b"]q\x00]q\x01h\x01h\x01\x86ah\x01h\x01a.", "changes a value that it has repeated"),
    "a tuple for a key": (b"}K\x01\x85K\x01s.", "neither text nor integer"),
    "another opcode": (b"\x8b\x01\0\0\0\x01.", "the opcode LONG4"),
    "no values": (b"a.", "is damaged"),
    "values left": (b"NN.", "has no end"),
    "no end": (b"N" * 2_000_000 + b".", "more than 500,000 opcodes"),
    "17 MB": (b"N" * (17 << 20), "at most 16,777,216 are read"),
}
