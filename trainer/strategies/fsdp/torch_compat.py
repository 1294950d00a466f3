"""Private names of FSDP2, read in torch 2.13.0: the default collectives, which FSDP's counted ones extend.

tests/integration/test_compat.py checks these names.
"""

from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

__all__ = ["READ_IN", "DefaultAllGather", "DefaultReduceScatter"]

READ_IN = "2.13.0"
