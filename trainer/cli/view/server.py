"""TensorBoard in this process, on links to event files: `python -m leyden.trainer.cli.view.server PORT FOLDER ...`."""

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tensorboard import default, program

from ...base.paths import absolute
from .links import EventLinks
from .start_page import StartPage, name_folders

_EVERY_S = 5.0
"""Seconds between two looks at the runs: TensorBoard looks for new events as often."""


def main(port: str, *words: str) -> int:
    folders = list(dict.fromkeys(absolute(word) for word in words))
    label = folders[0].name if len(folders) == 1 else "runs"
    with TemporaryDirectory(prefix="leyden-view-", ignore_cleanup_errors=True) as place:
        links = EventLinks(Path(place) / label, name_folders(folders))
        links.refresh()
        ended = threading.Event()
        threading.Thread(target=_keep, args=(links, ended), daemon=True).start()
        # TensorBoard shows the path that it is given
        os.chdir(place)

        def serve(application: Any, flags: Any) -> program.WerkzeugServer:
            server = program.WerkzeugServer(StartPage(application, lambda: links.pinned), flags)
            # in place of TensorBoard's handler, whose exception is lost where the signal comes in a finalizer
            signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
            return server

        board = program.TensorBoard(plugins=default.get_plugins(), server_class=serve)
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
