"""Hang detection: progress reports of processes, a detector in the agent, a watchdog in a single process, diagnosis."""
