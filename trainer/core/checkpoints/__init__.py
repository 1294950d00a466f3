"""Checkpoint files: layout, shards, and the checks of content, size and code before anything is loaded."""
