"""strategy=ddp."""

from .strategy import DDP as DDP
