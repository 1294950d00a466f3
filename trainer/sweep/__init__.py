"""Multirun: Hydra's sweepers and launchers, trials, their results, resuming them. Public face: sweep.Sweep,
resume.resume_sweep."""
