"""Exit codes of the command."""

EXIT_CODES = {"done": 0, "slow": 1, "preempted": 75, "interrupted": 130}
"""Exit codes by final status of a run; slow: the doctor found a slow component."""
REFUSED = 3
"""Exit code of a run that the preflight refused."""
