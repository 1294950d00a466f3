"""Loggers of a run: the contract of what the loop calls, the calls, and the files that a resumption cuts."""
