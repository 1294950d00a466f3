"""A warm worker of tests/pool.py: imports once, then does one run after another as its orders come in."""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def main() -> None:
    rank, workers = sys.argv[1], sys.argv[2]
    import torch
    import torch.distributed as dist

    from leyden.trainer.config import load
    from leyden.trainer.launch.worker import _work
    from leyden.trainer.log import close_log
    from leyden.trainer.signals import StopRequest

    # as under an agent, which all workers descend from: none takes another for a process that is in its way
    os.environ.update(OMP_NUM_THREADS="1", LEYDEN_AGENT=str(os.getppid()))
    path = list(sys.path)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        run_dir = Path(order["run_dir"])
        here = load(run_dir).topology.devices_per_node  # with topology.nodes > 1 the workers act several nodes
        os.environ.update(
            RANK=rank, LOCAL_RANK=str(int(rank) % here), GROUP_RANK=str(int(rank) // here), WORLD_SIZE=workers,
            LOCAL_WORLD_SIZE=str(here), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(order["port"]),
            TORCHELASTIC_RUN_ID="pool",
        )  # fmt: skip
        answer = {"status": "", "error": ""}
        try:
            answer["status"] = _work(load(run_dir), run_dir, order["verb"], None, StopRequest())
            if dist.is_initialized():
                dist.barrier()
        except Exception:
            answer["error"] = traceback.format_exc()
        close_log()
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.path[:] = path
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)
        print(f"\n@{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
