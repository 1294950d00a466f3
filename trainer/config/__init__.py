"""Way from YAML and overrides to a validated config, and back from a frozen one. Public face: compose.Composer,
schema.load, checks.check_values. No torch before classes are imported."""
