"""A page in headless Chromium, driven through its own pipe protocol: no package, no port."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SECONDS = 90


class Navigated(Exception):
    """The page was replaced while it was asked."""


class Browser:
    """One page.

    Args:
        profile: an empty folder for it.

    Attributes:
        console: its messages, including errors and exceptions.
        requests: addresses asked for.
    """

    def __init__(self, profile):
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # The program reads descriptor 3 and writes 4. The shell moves ours there from any number.
        flags = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe --hide-scrollbars --no-first-run"
        command = f'exec "$0" {flags} --user-data-dir="$1" about:blank 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, PROGRAM, str(profile)],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._numbers, self._rest, self._session = itertools.count(1), b"", None
        self.console, self.requests, self._loaded = [], [], set()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method, **parameters):
        """Ask, and wait for the answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                error = answer.get("error")
                if error is not None and "navigated" in error["message"]:
                    raise Navigated
                assert error is None, error
                return answer["result"]

    def open(self, path, width=1200, height=900, scheme="light"):
        """Load a file and wait until it is there."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        # The page before it may be loaded only now: each has its own number.
        number = self.call("Page.navigate", url=path.resolve().as_uri())["loaderId"]
        while number not in self._loaded:
            self._next()

    def value(self, expression):
        """Of JavaScript, as JSON gives it."""
        while True:
            with contextlib.suppress(Navigated):  # asked while the page loads itself again
                found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
                break
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key):
        """A key, as if typed."""
        codes = {"Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39, "Escape": 27, "+": 187, "-": 189}
        codes |= {"ArrowUp": 38, "ArrowDown": 40, "Enter": 13, " ": 32, "/": 191}
        code = codes[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def point(self, selector, click=False):
        """The mouse on the middle of an element that is in sight, and a click there."""
        where = f"document.querySelector({selector!r}).getBoundingClientRect()"
        x, y = self.value(f"(({{left, top, width, height}}) => [left + width / 2, top + height / 2])({where})")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def write(self, text):
        """Insert text, as if typed into the focused element."""
        self.call("Input.insertText", text=text)

    def drag(self, selector, start, stop):
        """The mouse over an element, between two shares of its width, 0 to 1."""
        self.value(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        where = f"document.querySelector({selector!r}).getBoundingClientRect()"
        box = self.value(f"(({{left, top, width, height}}) => [left, top, width, height])({where})")
        y = box[1] + box[3] / 2
        mouse = {"button": "left", "clickCount": 1, "y": y}
        xs = [box[0] + box[2] * share for share in (start, (start + stop) / 2, stop)]
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=xs[0], **mouse)
        for x in xs:
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, buttons=1, **mouse)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=xs[-1], **mouse)

    def picture(self):
        """The page as PNG, all of its height."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def close(self):
        """End the program."""
        os.close(self._write)
        os.close(self._read)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _next(self):
        end = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser says nothing"
            more = os.read(self._read, 1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        text, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(text)
        self._note(message.get("method"), message.get("params"))
        return message

    def _note(self, method, parameters):
        if method == "Page.lifecycleEvent" and parameters["name"] == "load":
            self._loaded.add(parameters["loaderId"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.console.append(parameters)
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
