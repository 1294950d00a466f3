"""Where the workers of a pipeline find its coordinator: in the store that they all know."""

from ..launch.store import Store

_KEY = "leyden/pipeline/coordinator"


def publish(store: Store, host: str, port: int) -> None:
    store.set(_KEY, f"{host}:{port}")


def coordinator_address() -> str:
    """HOST:PORT; waits until it is known."""
    # it imports torch, which an agent that only publishes the address does without
    from ..servers.wire import open_store

    return open_store().get(_KEY).decode()
