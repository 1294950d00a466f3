"""Checkpoints of a training: what is saved, and the files that it is written into."""
