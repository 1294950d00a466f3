"""Datasets of patches that are cut out of photographs."""
