"""Address of the coordinator in the store, and the time that workers get at the end. Imports no torch."""

from ..launch.store import Store

# The agent imports this before it starts workers: importing torch takes seconds, which would delay them all.

SAVE_TIMEOUT_S = 30.0
"""Time for workers to save their models at the end of a run that is stopped or has failed."""
PROTOCOL = "pipeline"
"""Protocol of the connections between workers and coordinator."""
_KEY = "leyden/pipeline/coordinator"


def publish(store: Store, host: str, port: int) -> None:
    """Write the coordinator's address."""
    store.set(_KEY, f"{host}:{port}")


def coordinator_address() -> str:
    """HOST:PORT; blocks until it is published."""
    from ..core.communication.tcp_store import open_store

    return open_store().get(_KEY).decode()
