"""The agent: starts a run's processes, watches over them, restarts them, on one node or several, or through Slurm.
Public face: agent.launch, worker_group.Attempt, slurm.submit.queue. No torch until the store opens."""
