"""Three steps and a log step of each case on a pretended CUDA device, one line of JSON each.

PRETEND_CUDA_LIBRARY=libguard.so python run_cases.py WORKERS OVERRIDES...     # one argument a case
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from device import pretended

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "modules")]

import torch
import torch.distributed as dist
import wrapped
from dispatch import PretendedCuda
from machines import topology_config

from leyden.trainer.base.signals import StopRequest
from leyden.trainer.core.callback_contract import CallbackContract
from leyden.trainer.core.state import RunState
from leyden.trainer.engine.build import assemble
from leyden.trainer.engine.loop import Epoch
from leyden.trainer.engine.network.teacher import load_teacher

OPTIONS = [
    "topology.device.kind=cuda", "trainer.log_every_n_steps=1000", "callbacks=none", "logger=none", "dataset=synthetic",
    "trainer.max_steps=4", "trainer.limit_val_batches=0", "trainer.limit_test_batches=0",
]  # fmt: skip


def process_group(workers: int) -> None:
    """torch's process group that sends nothing, in place of NCCL."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    ranks = {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": str(workers)}
    os.environ.update(ranks, LOCAL_WORLD_SIZE=str(workers), MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    os.environ["TORCHELASTIC_RUN_ID"] = "pretended"
    dist.init_process_group("fake", rank=0, world_size=workers, store=FakeStore())
    wrapped.pretend()


def run(mode: PretendedCuda, overrides: list[str], workers: int) -> dict[str, Any]:
    config = topology_config(*OPTIONS, f"topology.devices_per_node={workers}", *overrides)
    with mode:
        state = assemble(config, Path(tempfile.mkdtemp()), StopRequest())
        load_teacher(state)
        state.contract.begin_fit()
        state.call(CallbackContract.on_fit_start)
        epoch = Epoch(state, mock.Mock())
        ends = state.callback_hooks(CallbackContract.on_step_end)
        state.log.in_step = True
        parts = iter(state.data.train_parts(0, 0, 4))
        for number in range(3):
            if number == 1:
                mode.begin()
            assert epoch.step.run(parts) is not None
            for hook in ends:
                hook(state)
        steps = mode.end()
        mode.begin()
        with mock.patch.object(state, "report") as report:
            epoch.log()
        log = mode.end()
        devices = {name: sorted({tensor.device.type for tensor in each}) for name, each in tensors_of(state).items()}
    fused = state.raw_optimizer.param_groups[0].get("fused")
    values = report.call_args.args[0]
    return {"fused": fused, "overrides": overrides, "devices": devices, "steps": steps, "log": log, "values": values}


def tensors_of(state: RunState) -> dict[str, list[torch.Tensor]]:
    """What a training keeps between two steps, by kind."""
    optimizer = [value for each in state.raw_optimizer.state.values() for value in each.values()]
    losses = [value for entry in state.log.entries.values() for value, _ in entry.waiting]
    return {
        "parameters": list(state.task.parameters()),
        "buffers": list(state.task.buffers()),
        "optimizer": [value for value in optimizer if isinstance(value, torch.Tensor) and value.ndim],
        "metrics": [value for value in losses if isinstance(value, torch.Tensor)],
        "averages": [each for callback in state.callbacks.values() for each in getattr(callback, "average", [])],
    }


def main() -> None:
    workers, cases = int(sys.argv[1]), [case.split() for case in sys.argv[2:]]
    torch._C._set_only_lift_cpu_tensors(True)
    with pretended(workers):
        if workers > 1:
            process_group(workers)
        for case in cases:
            print(json.dumps(run(PretendedCuda(), case, workers)), flush=True)


if __name__ == "__main__":
    main()
