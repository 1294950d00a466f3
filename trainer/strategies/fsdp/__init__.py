"""strategy=fsdp."""

from .strategy import FSDP as FSDP
