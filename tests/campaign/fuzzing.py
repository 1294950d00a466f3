"""Settings of the fuzzing: a few examples, always the same ones, in CI; random ones for LEYDEN_FUZZ_SECONDS by hand."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hypothesis import HealthCheck, settings

SECONDS = float(os.environ.get("LEYDEN_FUZZ_SECONDS", "0"))
"""For each property; 0: the examples of CI."""
CPU_S = 2.0
"""CPU time of one example."""
counted: dict[str, int] = {}
"""Examples of each property."""


def examples(number: int) -> settings:
    """So many examples, in CI half of them, always the same ones."""
    return settings(
        max_examples=number if SECONDS else number // 2,
        derandomize=not SECONDS,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
        print_blob=True,
    )


def check(a_property: Callable[[], None], name: str = "") -> None:
    """Run a property for its examples, or for its seconds."""
    end = time.monotonic() + SECONDS
    a_property()
    while time.monotonic() < end:
        a_property()
    name = name or a_property.__name__
    print(f"{name}: {counted[name]} examples")


@contextmanager
def only(name: str, *documented: type[Exception], cpu_s: float = CPU_S) -> Iterator[None]:
    """Whatever is refused is refused by one of these errors, and soon."""
    counted[name] = counted.get(name, 0) + 1
    before = time.process_time()
    with suppress(*documented):
        yield
    spent = time.process_time() - before
    assert spent < cpu_s, f"took {spent:.1f} s"


def mutated(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """Bytes with some of them replaced: for each edit an offset, how many, and by what."""
    found = bytearray(data)
    for at, length, new in edits:
        at %= len(found) + 1
        found[at : at + length] = new
    return bytes(found)
