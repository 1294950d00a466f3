"""What a config may name: the rule for all, group types, Hydra's own node, runs of other users."""
