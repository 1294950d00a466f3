"""Values that workers exchange: plain ones, never pickled."""

import ast
import json
import random
from pathlib import Path

import pytest
import torch

import leyden.trainer
from leyden.trainer.base import rng
from leyden.trainer.core.communication.plain_values import decode, encode

TRAINER = Path(leyden.trainer.__file__).parent
UNPICKLING = {
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list", "pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "_object_to_tensor",
}  # fmt: skip


def test_nothing_of_ours_unpickles_what_arrives() -> None:
    found: list[str] = []
    for path in TRAINER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Attribute):
                names = [node.attr]
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("fabric.broadcast", "strategy.broadcast")
            ):
                # which is broadcast_object_list, where there are workers
                names = [] if path.name == "plain_values.py" else ["broadcast_object_list"]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                safe = any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in node.keywords)
                names = [] if safe else ["pickle"]
            found += [f"{path.relative_to(TRAINER)}:{node.lineno}: {name}" for name in names if name in UNPICKLING]  # type: ignore[attr-defined]
    assert not found


@pytest.mark.parametrize("value", [None, True, 3, 0.1, "text\ud800", [1, [2.5, None]], {"a": {"b": []}}, 2**70])
def test_a_value_survives(value: object) -> None:
    assert decode(encode(value)) == value


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.bfloat16, torch.float64, torch.bool])
def test_a_tensor_survives(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    for one in (tensor, tensor.T, tensor[0, 0], tensor[:0]):
        found = decode(encode({"x": one}))["x"]
        assert found.dtype == dtype
        assert torch.equal(found, one)


def test_an_older_state_of_pythons_generator_is_restored() -> None:
    state = rng.capture(torch.device("cpu"))
    words, gauss = state["python"]
    drawn = random.random()
    rng.restore({**state, "python": [*words.tolist(), gauss]}, torch.device("cpu"))
    assert random.random() == drawn


def test_states_of_generators_survive() -> None:
    state = rng.capture(torch.device("cpu"))
    rng.restore(decode(encode(state)), torch.device("cpu"))
    again = rng.capture(torch.device("cpu"))
    assert torch.equal(again["torch"], state["torch"])
    assert torch.equal(again["python"][0], state["python"][0])
    assert again["python"][1] == state["python"][1]
    assert torch.equal(again["numpy"][1], state["numpy"][1])


@pytest.mark.parametrize(
    "tensor",
    [
        {"__tensor__": "load", "shape": [1], "data": "AA=="},
        {"__tensor__": "int64", "shape": [1], "data": "AA=="},
        {"__tensor__": "uint8", "shape": [7], "data": "AA=="},
        {"__tensor__": "uint8", "shape": "x", "data": "AA=="},
        {"__tensor__": "uint8", "shape": [1], "data": "?"},
    ],
)
def test_a_malformed_tensor_is_an_error(tensor: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # of several libraries
        decode(json.dumps(tensor).encode())


def test_an_object_is_no_plain_value() -> None:
    with pytest.raises(TypeError, match="Path"):
        encode(Path())
