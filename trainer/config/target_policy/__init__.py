"""Verdicts on what a config names besides the blocklist: group types, Hydra's own node, runs of other users."""
