"""The page that opens first, and the names of several folders. TensorBoard is not imported."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class StartPage:
    """A WSGI application that leads from `/` to the page with the pinned metrics.

    Args:
        pinned: their names, when the page is asked for.
    """

    def __init__(self, application: Application, pinned: Callable[[], list[str]]):
        self._application = application
        self._pinned = pinned

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("PATH_INFO") in ("", "/") and not environ.get("QUERY_STRING") and self._pinned():
            start_response("302 Found", [("Location", start_page(self._pinned())), ("Content-Length", "0")])
            return []
        return self._application(environ, start_response)


def start_page(pinned: list[str]) -> str:
    """The address that opens the time series with some scalars pinned, and not smoothed: curves may be short."""
    cards = [{"plugin": "scalars", "tag": tag} for tag in pinned]
    return f"/?pinnedCards={quote(json.dumps(cards, separators=(',', ':')), safe='')}&smoothing=0#timeseries"


def name_folders(folders: list[Path]) -> dict[str, Path]:
    """Folders by what comes before the names of their runs: nothing for one, else as much of their paths as differs."""
    if len(folders) == 1:
        return {"": folders[0]}
    names = {}
    for folder in folders:
        parts = next(
            folder.parts[-count:]
            for count in range(1, len(folder.parts) + 1)
            if sum(other.parts[-count:] == folder.parts[-count:] for other in folders) == 1
        )
        names["/".join(parts).lstrip("/")] = folder
    return names
