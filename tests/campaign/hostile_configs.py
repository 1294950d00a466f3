"""Hostile overrides, YAML in a config folder, and text for Slurm."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from hostile_entries import QUIET, TRAIN, Entry, Make
from hostile_targets import ALIAS, COPIED, ELSEWHERE, MODELS, NODE, SWEPT
from hostile_text import CONTROL
from yaml_bombs import BOMBS

_OVERRIDES: Mapping[str, tuple[str, str]] = {
    # the override, and what the output names
    "deep list": (f"model.hidden={'[' * 5000}", "model.hidden"),
    "deep dictionary": (f"model.hidden={'{a:' * 3000}", "model.hidden"),
    "deep quotes": ("model.hidden=" + "\\'\"" * 2000, "model.hidden"),
    "deep functions": (f"model.hidden={'int(' * 2000}", "model.hidden"),
    "a long number": (f"batch_size={'9' * 100_000}", "batch_size"),
    "an infinite number": ("batch_size=1e400", "batch_size"),
    "not a number": ("optimizer.lr=nan", "optimizer.lr"),
    "a long key": (f"{'a.' * 20_000}b=1", "a.a.a"),
    "a range without end": ("seed=range(0,1e18)", "seed"),
    "control characters": ("model.hidden='\x1b]0;owned\x07'", "model"),
    "an unfinished interpolation": ("model.dropout=${", "model.dropout"),
    "an interpolation of itself": ("model.dropout=${model.dropout}", "model.dropout"),
    "a resolver that is none": ("model.dropout=${system:touch canary}", "model.dropout"),
    "a group outside": ("model=../../../etc/passwd", "model"),
    "an absolute group": ("model=/etc/passwd", "model"),
    "a package outside": ("model@__class__.__init__=mlp", "__class__"),
    "dunder keys": ("+model.__class__.__init__=1", "model"),
    "a surrogate": ("model.hidden='\udcff'", "model"),
    "a shell": ("hydra.run.dir=$(touch canary)", "hydra.run.dir"),
    "a folder in a device": ("hydra.run.dir=/dev/null/x", "hydra.run.dir"),
}


def _file(name: str, text: str | bytes) -> Make:
    def make(here: Path) -> None:
        path = here / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogateescape"))

    return make


def _fifo(here: Path) -> None:
    (here / "conf" / "optimizer").mkdir()
    os.mkfifo(here / "conf" / "optimizer" / "hostile.yaml")


def _device(here: Path) -> None:
    (here / "conf" / "optimizer").mkdir()
    (here / "conf" / "optimizer" / "hostile.yaml").symlink_to("/dev/zero")


_GROUP_FILES: Mapping[str, tuple[str | bytes, str]] = {
    "a Python tag": ("!!python/object/apply:os.system ['touch canary']\n", "hostile"),
    "a tag in a value": ("_target_: torch.optim.SGD\nlr: !!python/name:os.system\n", "hostile"),
    "a list": ("- a\n- b\n", "hostile"),
    "a text": ("touch canary\n", "hostile"),
    "bytes of all values": (bytes(range(256)), "hostile"),
    "UTF-16": ("lr: 1\n".encode("utf-16"), "hostile"),
    "a command": ("_target_: os.system\ncommand: touch canary\n", "optimizer._target_"),
    "a command by an alias": ("_target_: torch.os.system\ncommand: touch canary\n", "optimizer._target_"),
    "a nested command": (
        "_target_: torch.optim.SGD\nlr:\n  _target_: subprocess.run\n  args: [touch, canary]\n",
        "optimizer.lr._target_",
    ),
    "defaults outside": ("defaults:\n  - /../../../etc/passwd\n_target_: torch.optim.SGD\n", "passwd"),
    "defaults of itself": ("defaults:\n  - hostile\n_target_: torch.optim.SGD\n", "hostile"),
    "defaults of a command": ("defaults:\n  - {_target_: os.system}\n_target_: torch.optim.SGD\n", "hostile"),
}


def overrides() -> Iterator[Entry]:
    for target, words in MODELS.items():
        if target.startswith("target_policy_examples") or target in ("functools.partial", "builtins.exec"):
            continue
        yield Entry("override", target, (f"model._target_={target}", "~model.parallel", *words), ["model._target_"])
    for name, (override, says) in _OVERRIDES.items():
        yield Entry("override", name, (*QUIET, override), [says])
    for name, (words, says) in ELSEWHERE.items():
        if not any("target_policy_examples" in word for word in words):
            yield Entry("override", name, (*words, "~model.parallel"), [says])
    for name, value in COPIED.items():
        if "target_policy_examples" not in value:
            words = (*QUIET, "tags=[os.system]", f"+task.hidden={value}")
            yield Entry("copied YAML", name, words, ["task.hidden"])
    for name, (words, says) in {**SWEPT, **NODE}.items():
        if any("target_policy_examples" in word for word in words):
            continue
        yield Entry("hydra node", name, ("-m", "seed=1,2", *words), [says], harmless="sweep")
    yield Entry("hydra node", "an alias in one run", (f"+hydra.callbacks.a={ALIAS}",), ["hydra.callbacks.a._target_"])


def yaml_files() -> Iterator[Entry]:
    words = ("--config-dir", "conf")
    for name, (text, says) in BOMBS.items():
        yield Entry(
            "YAML",
            name,
            (*words, "optimizer=hostile", *TRAIN),
            ["hostile.yaml", says],
            _file("optimizer/hostile.yaml", text),
        )
    for name, (text, says) in _GROUP_FILES.items():
        yield Entry("YAML", name, (*words, "optimizer=hostile", *TRAIN), [says], _file("optimizer/hostile.yaml", text))
    for name, make in {"a FIFO": _fifo, "a device": _device}.items():
        yield Entry("YAML", name, (*words, "optimizer=hostile", *TRAIN), ["optimizer = hostile"], make)


def slurm_texts() -> Iterator[Entry]:
    words = ("topology=slurm", "topology.device.kind=cpu", *QUIET)
    for character in ("\n", "\r", "\x1b", "\u2028"):
        assert character in CONTROL
        text = f"gpu{character}touch canary"
        for key in ("partition", "account"):
            yield Entry(
                "Slurm", f"{key} {character!a}", (*words, f"topology.slurm.{key}='{text}'"), [f"topology.slurm.{key}"]
            )
    yield Entry("Slurm", "a folder", (*words, "hydra.run.dir='a\ntouch canary'"), ["hydra.run.dir"])
