"""Processes beside the workers that hold parameters."""
