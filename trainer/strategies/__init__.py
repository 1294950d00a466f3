"""How training is split over workers: one Fabric Strategy a file, named as in the YAML, and what they are made of.

ddp: powersgd, whole_backward. butterfly: halving_doubling, buckets, exchange_thread, parameter_use. hybrid:
sharded_head, head_turns, head_traffic, exchange, hybrid_checks. spatial: grid, halo, tiling. fsdp: units.
All: contract (what the loop asks), ledger (what is sent), partial_step.
"""
