"""Settings of the fuzzing: a few examples, always the same ones, in CI; random ones for LEYDEN_FUZZ_SECONDS by hand."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hypothesis import HealthCheck, settings

SECONDS = float(os.environ.get("LEYDEN_FUZZ_SECONDS", "0"))
"""For each property; 0: the examples of CI."""
CPU_S = 1.0
"""CPU time of one example."""
counted: dict[str, int] = {}
"""Examples of each property."""


def examples(number: int) -> settings:
    """As many examples in CI; rounds of random ones where seconds are given."""
    return settings(
        max_examples=400 if SECONDS else number,
        derandomize=not SECONDS,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


def check(a_property: Callable[[], None]) -> None:
    """Run a property for its examples, or for its seconds."""
    end = time.monotonic() + SECONDS
    a_property()
    while time.monotonic() < end:
        a_property()
    print(f"{a_property.__name__}: {counted.get(a_property.__name__, 0)} examples")


@contextmanager
def only(name: str, *documented: type[Exception]) -> Iterator[None]:
    """Whatever is refused is refused by one of these errors, and soon."""
    counted[name] = counted.get(name, 0) + 1
    before = time.process_time()
    with suppress(*documented):
        yield
    spent = time.process_time() - before
    assert spent < CPU_S, f"took {spent:.1f} s"


def mutated(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """Bytes with some of them replaced: for each edit an offset, how many, and by what."""
    found = bytearray(data)
    for at, length, new in edits:
        at %= len(found) + 1
        found[at : at + length] = new
    return bytes(found)
