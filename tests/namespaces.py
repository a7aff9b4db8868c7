"""Hosts of their own network, as network namespaces. Needs root and `ip`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest


def ip(*words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=150)


class Hosts:
    """Namespaces with an address each: two joined by a cable, more of them by a bridge in the first one."""

    def __init__(self, count: int = 2) -> None:
        self.names = [f"fl{os.getpid() % 10**7}{chr(ord('a') + i)}" for i in range(count)]
        self.addresses = [f"10.0.0.{i + 1}" for i in range(count)]  # the first is from the guide

    def make(self) -> None:
        first = self.names[0]
        for name in self.names:
            ip("netns", "add", name)
        if len(self.names) == 2:
            ip("link", "add", first, "type", "veth", "peer", "name", self.names[1])
        else:
            ip("-n", first, "link", "add", first, "type", "bridge")
            for name in self.names[1:]:
                ip("link", "add", f"{name}p", "type", "veth", "peer", "name", name)
                ip("link", "set", f"{name}p", "netns", first)
                ip("-n", first, "link", "set", f"{name}p", "master", first)
                ip("-n", first, "link", "set", f"{name}p", "up")
        for name, address in zip(self.names, self.addresses, strict=True):
            if name != first or len(self.names) == 2:
                ip("link", "set", name, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")

    def cut(self) -> None:
        """Cut the cable."""
        ip("-n", self.names[0], "link", "set", self.names[0], "down")

    def empty(self) -> None:
        """End all processes in them: ranks outlive a killed launcher."""
        for name in self.names:
            found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, timeout=150)
            for pid in found.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=150)


@contextlib.contextmanager
def joined(count: int = 2) -> Iterator[Hosts]:
    """Make hosts for a test, skip where that is impossible."""
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed")
    made = Hosts(count)
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"namespaces are not permitted here: {error.stderr.strip()}")
    try:
        yield made
    finally:
        made.remove()
