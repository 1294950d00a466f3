"""How training is split over workers: one Fabric Strategy a file, named as in the YAML, and what they are made of.

ddp: powersgd, whole_backward. butterfly: halving_doubling, buckets, exchange_thread, parameter_use. hybrid:
sharded_head, head_turns, head_traffic, exchange, hybrid_checks. spatial: grid, halo, tiling. fsdp: units.
easgd, asgd, local_sgd: runs_ahead (what they have in common), requests (the rules' language), elastic_averaging,
downpour, local_averaging (the rules), flat_parameters, workers_here (who carries rules out), live, virtual, simulation,
replay, delays, turns, saved_workers, measures, ahead_checks.
All: contract (what the loop asks), ledger (what is sent), partial_step.
"""
