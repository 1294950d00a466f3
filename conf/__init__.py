"""The YAML that Leyden composes: one folder a config group. `train.yaml` is the root."""
