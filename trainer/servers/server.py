"""What a server process does."""

import os
from datetime import timedelta

from ..config import Config


def serve(config: Config, index: int) -> None:
    """Wait for the workers' end."""
    from torch.distributed import TCPStore

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timedelta(days=1))
    store.wait(["leyden/servers/end"])
