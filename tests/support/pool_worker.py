"""A warm worker of tests/support/pool.py: imports once, then does one run after another as its orders come in."""

import gc
import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any


def main() -> None:
    rank, workers = sys.argv[1], sys.argv[2]
    import torch
    import torch.distributed as dist

    from leyden.trainer.base.log import close_log
    from leyden.trainer.base.signals import StopRequest
    from leyden.trainer.config.job import JobSpec
    from leyden.trainer.config.schema import load
    from leyden.trainer.engine import train  # noqa: F401  # here, since two threads at once cannot import Lightning
    from leyden.trainer.entrypoints.worker import run_worker

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
            TORCHELASTIC_RUN_ID="pool", LEYDEN_SECRET="00" * 32,
        )  # fmt: skip
        answer = {"status": "", "error": ""}
        servers = Servers(run_dir) if rank == "0" else None
        try:
            answer["status"] = run_worker(JobSpec.load(run_dir, order["verb"]), StopRequest())
            if servers is not None:
                servers.join()
            if dist.is_initialized():
                dist.barrier()
        except Exception:
            answer["error"] = traceback.format_exc()
        close_log()
        if dist.is_initialized():
            dist.destroy_process_group()
        release_process_groups()
        gc.collect()
        gc.freeze()  # what outlives a run is not looked at after the next one
        sys.path[:] = path
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)
        print(f"\n@{json.dumps(answer)}", flush=True)


def release_process_groups() -> None:
    """Break the cycles that keep a finished run, which the garbage collector does not see: through the reducer of DDP,
    which is C++ and refers to hooks, and through a thread. A process group that lives wakes 100 times a second.
    """
    from torch.nn.parallel import DistributedDataParallel

    from leyden.trainer.strategies.butterfly.comm_thread import CommThread
    from leyden.trainer.strategies.butterfly.halving_doubling import ButterflyAllReduce

    for found in gc.get_objects():
        if type(found) is CommThread:
            found.close()
        elif issubclass(type(found), DistributedDataParallel | ButterflyAllReduce):
            vars(found).clear()


class Servers:
    """The run's parameter servers, each in a thread of this process: the same wire, without a launch."""

    def __init__(self, run_dir: Path):
        from leyden.trainer.config.schema import load

        self.errors: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._serve, args=(run_dir, index), daemon=True)
            for index in range(load(run_dir).servers)
        ]
        for thread in self.threads:
            thread.start()

    def _serve(self, run_dir: Path, index: int) -> None:
        from leyden.trainer.config.schema import load
        from leyden.trainer.strategies.param_server.server import serve

        try:
            serve(load(run_dir), run_dir, index)
        except BaseException as error:
            self.errors.append(error)

    def join(self) -> None:
        """
        Raises:
            BaseException: what a server has failed with.
        """
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "a server waits for a worker that has left"
        if self.errors:
            raise self.errors[0]


if __name__ == "__main__":
    main()
