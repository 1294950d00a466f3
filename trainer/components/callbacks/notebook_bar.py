"""The progress of a run in the output of a notebook's cell."""

import sys
from html import escape
from typing import Any

from ...core.state import RunState


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which draws what IPython displays."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class NotebookBar:
    """A bar, the position and the newest metrics, in one output of the cell that is drawn anew."""

    def __init__(self, state: RunState):
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        self._output: Any = display(_draw_bar(state, "", ""), raw=True, display_id=True)

    def show(self, state: RunState, position: str, metrics: str) -> None:
        self._output.update(_draw_bar(state, position, metrics), raw=True)

    def stop(self) -> None:
        """Leave nothing: what there is to say stands in the lines of the log."""
        self._output.update({"text/plain": ""}, raw=True)


def _draw_bar(state: RunState, position: str, metrics: str) -> dict[str, str]:
    bar = f'<progress value="{state.step}" max="{max(1, state.total_steps)}"></progress>'
    return {"text/html": f"{bar} {escape(position)}<br>{escape(metrics)}", "text/plain": f"{position}  {metrics}"}
