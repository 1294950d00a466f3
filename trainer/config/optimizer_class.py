"""What an optimizer's class says of its step, asked before anything is built."""

from typing import Any

_WHOLE_IN_TORCH = ("Adafactor", "Muon", "Shampoo", "SOAP")


def needs_whole_parameters(optimizer: Any) -> bool:
    """Whether a class's update of an element depends on the others of its parameter."""
    return bool(getattr(optimizer, "whole_parameters", False)) or getattr(optimizer, "__name__", "") in _WHOLE_IN_TORCH
