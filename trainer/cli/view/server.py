"""TensorBoard in this process, on links to event files: `python -m leyden.trainer.cli.view.server PORT FOLDER ...`."""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from tensorboard import default, program

from ...base.paths import absolute
from .links import EventLinks

_EVERY_S = 5.0
"""As often as TensorBoard looks for new events."""
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


def named(folders: list[Path]) -> dict[str, Path]:
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


def main(port: str, *words: str) -> int:
    folders = list(dict.fromkeys(absolute(word) for word in words))
    label = folders[0].name if len(folders) == 1 else "runs"
    with TemporaryDirectory(prefix="leyden-view-", ignore_cleanup_errors=True) as place:
        links = EventLinks(Path(place) / label, named(folders))
        links.refresh()
        ended = threading.Event()
        threading.Thread(target=_keep, args=(links, ended), daemon=True).start()
        # TensorBoard shows the path that it is given
        os.chdir(place)
        board = program.TensorBoard(
            plugins=default.get_plugins(),
            server_class=lambda application, flags: program.WerkzeugServer(
                StartPage(application, lambda: links.pinned), flags
            ),
        )
        board.configure(argv=("", "--logdir", label, "--host", "localhost", "--port", port))
        try:
            return board.main()
        finally:
            ended.set()


def _keep(links: EventLinks, ended: threading.Event) -> None:
    while not ended.wait(_EVERY_S):
        with suppress(OSError):  # of a folder that is being moved or removed
            links.refresh()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
