"""`python -m leyden` is `leyden`."""

from leyden.trainer.cli.main import entry_point

if __name__ == "__main__":
    entry_point()
