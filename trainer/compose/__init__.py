"""From YAML and overrides to a checked config: composition by Hydra, rules, messages, the reference of keys."""
