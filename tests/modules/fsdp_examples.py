"""What test_fsdp.py puts into runs: a callback that notes what each worker holds, a model that is hard to cut."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from traffic_examples import traffic_of_run


class Holdings:
    """One line of JSON a worker, in `folder`, at the end of training."""

    def __init__(self, folder: str):
        self.folder = Path(folder)

    def on_fit_end(self, state: Any) -> None:
        kept = [value for entry in state.raw_optimizer.state.values() for value in entry.values()]
        noted = {
            "parameters": sum(held(parameter) for parameter in state.task.parameters()),
            "optimizer": sum(held(value) for value in kept if isinstance(value, Tensor) and value.ndim),
            "traffic": [dataclasses.asdict(transfer) for transfer in traffic_of_run(state)],
            "messages": state.contract.ledger.messages,
            "exposed_seconds": state.contract.ledger.exposed_seconds,
            "units": len(state.fabric.strategy._units),
        }
        (self.folder / f"{os.environ['RANK']}.json").write_text(json.dumps(noted))


class InPlace(nn.Module):
    """Changes in place what its layers return as views; 64 pixels."""

    def __init__(self, classes: int):
        super().__init__()
        self.first = nn.Linear(16, 40)
        self.second = nn.Linear(40, 40)
        self.last = nn.Linear(40, classes)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.first(images.reshape(-1, 4, 16))
        F.relu(rows, inplace=True)
        more = self.second(rows)
        more += rows
        return self.last(more.mean(1))


def held(value: Tensor) -> int:
    """Bytes in this worker's memory."""
    local = value.to_local() if isinstance(value, DTensor) else value
    return local.untyped_storage().nbytes()
