"""Dropout by sample beside torch's, forward and backward.

    python benchmarks/dropout.py     # about two minutes on a quiet machine; --compiled needs a C++ compiler

Both run in turns in one process; only their ratio means anything.
"""

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from leyden.trainer.core.keyed.dropout import KeyedDropout, SampleKeys

P = 0.1
SHAPE = (32, 197, 1536)
"""The activations of a ViT-S/16's hidden layer, batch 32."""


def ratio(dtype: torch.dtype, compiled: bool, rounds: int) -> tuple[float, float]:
    """Median of the ratios of neighbouring rounds, and milliseconds of torch's."""
    sample_keys = SampleKeys()
    layer = KeyedDropout(P, 7, 0, sample_keys)
    keys = torch.randint(2**62, SHAPE[:1])
    inputs = torch.randn(SHAPE, dtype=dtype, requires_grad=True)
    gradient = torch.randn(SHAPE, dtype=dtype)
    exact: Callable[[Tensor], Tensor] = layer
    torchs: Callable[[Tensor], Tensor] = lambda x: F.dropout(x, P)  # noqa: E731
    if compiled:
        exact, torchs = torch.compile(exact), torch.compile(torchs)

    def seconds(drop: Callable[[Tensor], Tensor]) -> float:
        began = perf_counter()
        sample_keys.set(keys)
        drop(inputs).backward(gradient)
        return perf_counter() - began

    pairs = [(seconds(exact), seconds(torchs)) for _ in range(rounds)][rounds // 5 :]
    return statistics.median(a / b for a, b in pairs), 1e3 * statistics.median(b for _, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--compiled", action="store_true", help="both through torch.compile as well")
    arguments = parser.parse_args()
    for compiled in (False, True) if arguments.compiled else (False,):
        for dtype in (torch.float32, torch.bfloat16):
            times, torchs = ratio(dtype, compiled, arguments.rounds)
            how = "compiled" if compiled else "eager"
            print(f"{how:9} {str(dtype)[6:]:9} {times:5.2f} times F.dropout, which takes {torchs:.1f} ms")


if __name__ == "__main__":
    main()
