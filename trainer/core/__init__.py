"""Interfaces between engine and strategies: RunState, the contract of strategies, parts of a batch, traffic, metric
logs."""
