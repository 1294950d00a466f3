"""Sweeps by Optuna: settings, search space, the study and its journal, the sweeper. Public face: sweeper.OptunaSweeper,
plan.StudyPlan."""
