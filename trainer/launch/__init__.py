"""The agent: starts a run's processes, watches over them, restarts them, on one node or several, or through Slurm.
Public face: agent.launch, worker_group.WorkerGroup, slurm.submit.submit. No torch until the store opens."""
