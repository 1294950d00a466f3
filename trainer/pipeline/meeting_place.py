"""Where the workers of a pipeline find its coordinator, in the store that they all know, and how they leave it."""

from ..launch.store import Store

LEAVE_S = 30.0
"""What workers get to save what they have when it is over."""
_KEY = "leyden/pipeline/coordinator"


def publish(store: Store, host: str, port: int) -> None:
    store.set(_KEY, f"{host}:{port}")


def coordinator_address() -> str:
    """HOST:PORT; waits until it is known."""
    # it imports torch, which an agent that only publishes the address does without
    from ..servers.wire import open_store

    return open_store().get(_KEY).decode()
