"""Where the workers of a pipeline find its coordinator: in the store that they all know."""

from ..launch.store import Store
from ..servers.wire import open_store

_KEY = "leyden/pipeline/coordinator"


def publish(store: Store, host: str, port: int) -> None:
    store.set(_KEY, f"{host}:{port}")


def coordinator_address() -> str:
    """HOST:PORT; waits until it is known."""
    return open_store().get(_KEY).decode()
