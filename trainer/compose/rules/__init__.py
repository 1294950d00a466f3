"""Rules between the keys of one part of the config: `trainer.`, topology.slurm."""
