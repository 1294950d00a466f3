"""Composition of YAML and overrides to a checked config: by Hydra, with rules, messages, the reference of keys."""
