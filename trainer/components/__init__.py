"""Classes for `_target_` in YAML: callbacks, loggers, tasks, learning-rate schedules."""
