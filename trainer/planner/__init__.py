"""Prediction of a run before it starts: time, memory, traffic and cost, from its config alone."""
