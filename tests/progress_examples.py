"""Callbacks that take their time."""

import time
from typing import Any


class Sleeps:
    """After every validation."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def on_validation_end(self, state: Any) -> None:
        time.sleep(self.seconds)
