"""A callback that looks into a run whose workers run ahead."""

import json

from leyden.trainer.state import RunState


class Traffic:
    """Writes what the strategy says it sends into a file in the run's folder."""

    def on_fit_end(self, state: RunState) -> None:
        if state.fabric.is_global_zero:
            told = [vars(transfer) for transfer in state.contract.traffic()]
            (state.run_dir / "traffic.json").write_text(json.dumps(told))
