"""A callback for the tests of a hub's weights."""

import os
from typing import Any


class RecordsOffline:
    """Writes whether a worker asks no hub to the run's folder."""

    def on_fit_start(self, state: Any) -> None:
        (state.run_dir / "offline").write_text(os.environ["HF_HUB_OFFLINE"])
