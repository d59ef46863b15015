"""Photographs a report in a real browser: desktop and phone, light and dark, into docs/assets/.

    python docs/make_screenshots.py MODEL/report.html [--height 1400]

It speaks the DevTools protocol through a pipe, so nothing but Chromium is needed.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).parent / "assets"
WIDTHS = {"desktop": 1280, "phone": 390}
SCHEMES = ("light", "dark")
PATIENCE = 60
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str | None:
    """The browser's program, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass
class Browser:
    """A running Chromium with one page open; what the page complains of is gathered on the way."""

    to_browser: int
    from_browser: int
    session: str = ""
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _sent: int = 0
    _unread: bytes = b""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        unsent = json.dumps(message).encode() + b"\0"
        while unsent:
            unsent = unsent[os.write(self.to_browser, unsent) :]
        while True:
            reply = self._receive()
            if reply.get("id") == self._sent:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                return dict(reply["result"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self.from_browser], [], [], PATIENCE)
            if not ready:
                raise TimeoutError(f"Chromium said nothing for {PATIENCE} seconds")
            more = os.read(self.from_browser, 1 << 16)
            if not more:
                raise RuntimeError("Chromium closed the connection")
            self._unread += more
        message, self._unread = self._unread.split(b"\0", 1)
        event = json.loads(message)
        self._note(event.get("method", ""), event.get("params", {}))
        return dict(event)

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console {parameters['type']}")
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"].get("text")))
        elif method == "Log.entryAdded":
            self.complaints.append(str(parameters["entry"]["text"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(str(parameters["request"]["url"]))

    def show(self, page: Path, width: int, scheme: str, height: int = 844) -> None:
        """Open a file in a window of that width, in light or dark."""
        phone = width < 700
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self.evaluate("document.readyState") != "complete":
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise RuntimeError(f"{expression}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    def photograph(self, target: Path, most: int | None = None) -> None:
        """The page from its top, down to its end or to ``most`` pixels."""
        width, height = (self.evaluate(f"document.documentElement.{side}") for side in ("clientWidth", "scrollHeight"))
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, most or height), "scale": 1}
        picture = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        target.write_bytes(base64.b64decode(picture["data"]))


@contextmanager
def browser(program: str) -> Iterator[Browser]:
    """Start Chromium in an empty profile and end it afterwards."""
    commands, to_browser = os.pipe()
    from_browser, answers = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Chromium reads commands from descriptor 3 and answers on 4; a shell places them there.
        line = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        process = subprocess.Popen(
            ["/bin/bash", "-c", line, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        try:
            running = Browser(to_browser, from_browser)
            pages = [one for one in running.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
            attached = running.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
            running.session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                running.call(f"{domain}.enable")
            yield running
        finally:
            os.close(to_browser)
            os.close(from_browser)
            process.terminate()
            process.wait(timeout=30)


def main() -> None:
    """Four photographs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="a report.html")
    parser.add_argument("--out", type=Path, default=ASSETS, help="where the pictures go")
    parser.add_argument("--height", type=int, default=None, help="photograph only so many pixels from the top")
    options = parser.parse_args()
    program = find_chromium()
    if program is None:
        parser.error("no Chromium found; on Debian: apt-get install chromium")
    if not options.report.is_file():
        parser.error(f"{options.report} is not a file")
    options.out.mkdir(parents=True, exist_ok=True)
    with browser(program) as running:
        for device, width in WIDTHS.items():
            for scheme in SCHEMES:
                running.show(options.report, width, scheme)
                running.photograph(options.out / f"report-{device}-{scheme}.png", options.height)


if __name__ == "__main__":
    main()
