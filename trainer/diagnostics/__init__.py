"""Checks before the first step (preflight), and measurements of the cluster (doctor)."""
