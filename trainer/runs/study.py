"""Names of an Optuna study in a sweep's folder, for its sweeper and for the trials that report to it."""

PRUNING = "leyden.trainer.components.callbacks.optuna_pruning.OptunaPruning"
"""Callback that the sweep adds to its trials where they may be pruned."""
JOURNAL = "study.journal"
"""File that the sweep and its trials append to, one JSON object a line."""
STUDY = "leyden"
"""Name of the one study in the journal."""
