"""Manifests: objects by which Kubernetes starts the workers of a run, as plain data."""
