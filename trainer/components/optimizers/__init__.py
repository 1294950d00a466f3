"""Optimizers that torch does not have, or not for whole networks."""
