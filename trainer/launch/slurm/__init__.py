"""Runs through Slurm: the batch script, its submission, job arrays, rendezvous of the nodes."""
