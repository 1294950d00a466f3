"""Costs of a strategy in plain values: what is sent, and what one device computes and holds."""
