"""Loggers that continue after a resumption: entries after the checkpoint are removed, earlier ones stay."""
