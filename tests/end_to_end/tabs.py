"""Tabs of a real Chromium, driven through the pipe of its DevTools protocol: no driver and no WebSocket are needed."""

import base64
import contextlib
import itertools
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.end_to_end.browser import CHROMIUM

_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run --hide-scrollbars "
    "--remote-debugging-pipe"
)


class Browser:
    """A Chromium with a profile of its own. What its pages say on the console, and what they fetch, is kept."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def place() -> None:  # where the browser expects them
            ends = os.dup(to_browser), os.dup(from_browser)
            for number, end in zip((3, 4), ends, strict=True):
                os.dup2(end, number)

        self._process = subprocess.Popen(
            [CHROMIUM, *_FLAGS.split(), f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=place,
            close_fds=False,
            env=os.environ | {"TMPDIR": str(profile)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers, self._buffer = itertools.count(1), b""
        self._answers: dict[int, dict[str, Any]] = {}
        self.said: list[str] = []
        self.fetched: list[str] = []

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while number not in self._answers:
            if not self._receive(end - time.monotonic()):
                raise TimeoutError(method)
        answer = self._answers.pop(number)
        assert "error" not in answer, answer
        return answer["result"]

    def _receive(self, seconds: float) -> bool:
        if not select.select([self._read], [], [], max(seconds, 0))[0]:
            return False
        received = os.read(self._read, 1 << 20)
        if not received:
            raise EOFError("the browser has ended")
        *messages, self._buffer = (self._buffer + received).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._note(message["method"], message["params"])
        return True

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self.said.append(" ".join(str(each.get("value", each)) for each in event["args"]))
        elif method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.said.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded":
            self.said.append(event["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.fetched.append(event["request"]["url"])

    def open(self, address: str, **look: Any) -> "Tab":
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable", session)
        tab = Tab(self, session, target)
        tab.look(**look)
        tab.go(address)
        return tab

    def keep_downloads(self, folder: Path) -> None:
        self.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError, TimeoutError, AssertionError):
            self.send("Browser.close")
        for end in (self._read, self._write):
            os.close(end)
        self._process.wait(30)


class Tab:
    """One page."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target

    def close(self) -> None:
        self._browser.send("Target.closeTarget", targetId=self._target)

    def go(self, address: str) -> None:
        self._browser.send("Page.navigate", self._session, url=address)

    def look(self, width: int = 1400, height: int = 900, *, dark: bool = False) -> None:
        """The size of the window, and whether it is light or dark."""
        self._browser.send(
            "Emulation.setDeviceMetricsOverride",
            self._session,
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._browser.send("Emulation.setEmulatedMedia", self._session, features=scheme)

    def run(self, script: str) -> Any:
        """The value of an expression, awaited."""
        outcome = self._browser.send(
            "Runtime.evaluate", self._session, expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in outcome, outcome["exceptionDetails"]
        return outcome["result"].get("value")

    def until(self, condition: str, seconds: float = 30) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(AssertionError):  # the page is being replaced
                if self.run(f"Boolean({condition})"):
                    return
            time.sleep(0.02)
        raise AssertionError(f"never: {condition}; the page says: {self.run('document.body.innerText')}")

    def type(self, selector: str, text: str) -> None:
        """Replace what a field holds, as with a keyboard."""
        self.run(f"(document.querySelector({json.dumps(selector)}).focus(), document.activeElement.select())")
        self._browser.send("Input.insertText", self._session, text=text)

    def click(self, selector: str, at: int = 0) -> None:
        self.run(f"document.querySelectorAll({json.dumps(selector)})[{at}].click()")

    def picture(self, path: Path, *, whole: bool = True) -> None:
        shot = self._browser.send("Page.captureScreenshot", self._session, captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()
