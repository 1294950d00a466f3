"""Loggers that survive a resumption: what they wrote after the checkpoint is cut off, what came before stays."""
