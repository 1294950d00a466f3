"""Targets that no config may name: the names, and the verdict on a name and on the object behind it."""
