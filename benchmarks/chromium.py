"""A headless Chromium, controlled through a pipe (Chrome DevTools Protocol)."""

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_PATIENCE_S = 60.0
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip
_DEEP = """
const deep = (root, selector) => {
  const found = [];
  const walk = node => {
    if (node.matches && node.matches(selector)) found.push(node);
    if (node.shadowRoot) walk(node.shadowRoot);
    for (const child of node.children || []) walk(child);
  };
  walk(root);
  return found;
};
const all = selector => deep(document.documentElement, selector);
"""


class Page:
    """A page of a browser.

    Args:
        commands, answers: its pipe.
    """

    def __init__(self, commands: int, answers: int):
        self._commands, self._answers = commands, answers
        self._number = 0
        self._pending = b""
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            read = os.read(self._answers, 1 << 20)
            if not read:
                raise RuntimeError("chromium has ended")
            self._pending += read
        line, _, self._pending = self._pending.partition(b"\0")
        return json.loads(line)

    def size(self, width: int, height: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url: str) -> None:
        """Leave the page before, and load another one."""
        self._call("Page.navigate", url="about:blank")
        self._call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """A value in JavaScript, in which `all(SELECTOR)` are the elements, also those in shadow trees."""
        script = f"(() => {{ {_DEEP} return ({expression}) }})()"
        return self._call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """The value as soon as it is true.

        Raises:
            TimeoutError: it never was.
        """
        end = time.monotonic() + _PATIENCE_S
        while not (value := self.value(expression)):
            if time.monotonic() > end:
                raise TimeoutError(expression)
            time.sleep(0.2)
        return value

    def picture(self) -> bytes:
        """What is seen, as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])


@contextmanager
def chromium() -> Iterator[Page]:
    """A page of a Chromium of its own."""
    theirs_in, commands = os.pipe()
    answers, theirs_out = os.pipe()
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # chromium reads from 3 and writes to 4, which a shell gives it
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        command = ["bash", "-c", shell, "bash", "chromium", *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            command, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Page(commands, answers)
        finally:
            # a closed pipe ends the browser with all its processes
            os.close(commands)
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(answers)


def is_installed() -> bool:
    return any((Path(folder) / "chromium").exists() for folder in os.get_exec_path())
