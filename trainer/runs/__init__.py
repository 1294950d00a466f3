"""The run folder as files: paths, lease, summary, status, Slurm's facts of a job. No torch, no Hydra."""
