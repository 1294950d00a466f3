"""Runs through Slurm: a job's script, its way into the queue, and what the job does on its nodes."""
