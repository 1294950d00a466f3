"""What tests of the training loop put in place of Leyden's own parts."""

from typing import Any

import torch


class Poison:
    """Makes the loss NaN from step 7 on, and writes down every step that is done."""

    def on_step_end(self, state: Any) -> None:
        with open(state.run_dir / "poisoned", "a") as file:
            file.write(f"{state.step}\n")
        if state.step == 6:
            with torch.no_grad():
                next(state.task.parameters()).fill_(torch.nan)
