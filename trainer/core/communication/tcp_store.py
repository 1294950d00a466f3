"""The TCPStore of a run."""

import os

import torch.distributed as dist


def open_store() -> dist.TCPStore:
    """A new connection to the store of the run's workers.

    Not a shared one: a TCPStore client serializes its calls, so a thread that waits on it blocks the others.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False, wait_for_workers=False)
