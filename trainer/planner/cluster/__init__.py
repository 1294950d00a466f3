"""A cluster as a model: its constants, the times of a device, its links, and the exchanges of a step as events."""
