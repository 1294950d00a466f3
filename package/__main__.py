"""`python -m leyden` is `leyden`."""

from leyden.trainer.cli import entry_point

if __name__ == "__main__":
    entry_point()
