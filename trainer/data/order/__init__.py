"""Order in which training samples are visited: partitions, shuffling, and reading ahead of it."""
