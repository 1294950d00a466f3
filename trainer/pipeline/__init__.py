"""Many models at once: the data stays on the workers, the models move."""
