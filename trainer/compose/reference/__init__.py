"""The YAML files as a reference: groups, choices, keys and arguments for `leyden help` and `leyden schema`."""
