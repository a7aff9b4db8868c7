"""Which rank is missing? Every rank leaves a sign of life in a store that all can reach, and reads the others'.

Collectives say that something broke, never who. A thread of each rank writes ``<beats> <round> <exchange>`` under its
own key twice a second, and at the end its last words: that it closed, whom it found missing, or that it left an
exchange in the middle. So a rank that was killed or stopped, or that the network has cut off, is the one whose key no
longer changes; one that has closed says so itself; and one that is alive but elsewhere in its program is in an earlier
round, or in another exchange.

Costs: a message and an answer a beat; the beats of more than 64 ranks come less often. A store that answers no more
(its host is stopped) cannot be told from outside: then its host is the one to name.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CLOSED = "closed"
FAILED = "failed"
LEFT = "left"
#: Characters of an exchange's name that go with a beat.
SHOWN = 300


class Heartbeat:
    """This rank's signs of life, and what is known of the others'.

    Args:
        store: of torch.distributed; used through a connection of its own.
        rank: of this process.
        count: ranks.
        host: the rank that serves the store; None: none of them does.
        line: a connection to the store's server that nothing is sent on; None: there is none.

    Attributes:
        round: exchanges that this rank has begun.
        doing: what the last of them is.
        interval: seconds between beats.
    """

    def __init__(self, store: Any, rank: int, count: int, host: int | None, line: socket.socket | None = None) -> None:
        self._store, self._rank, self._host = store.clone(), rank, host
        self._line = line
        self._others = [r for r in range(count) if r != rank]
        self.round, self.doing = 0, "nothing yet"
        self.interval = 0.5 * max(1.0, count / 64)
        now = time.monotonic()
        self._texts: dict[int, str] = {}
        self._changed = dict.fromkeys(self._others, now)
        self._read_at, self._lost = now, False
        self._last_words = CLOSED
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feedline-heartbeat", daemon=True)
        self._thread.start()

    def leave(self, words: str = CLOSED) -> None:
        """Write the last words and stop beating. Idempotent."""
        if not self._end.is_set():
            self._last_words = words
            self._end.set()
        if threading.current_thread() is not self._thread:
            # A store that does not answer holds the thread up; it is a daemon, and ends with its connection.
            self._thread.join(2 * self.interval)

    def disconnect(self) -> None:
        """Leave, and close the connections."""
        self.leave()
        self._store = None
        if self._line is not None:
            self._line.close()

    def linger(self, seconds: float, missing: Sequence[int] = ()) -> None:
        """As the store's host, stay until all others but those ``missing`` have read this rank's last words."""
        others = [r for r in self._others if r not in missing]
        texts = self._known()
        seen = {r: texts.get(r, "") for r in others}
        beats = dict.fromkeys(others, 0)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._lost:
            self._look(self._store)
            texts = self._known()
            for r in others:
                if texts.get(r, "") != seen[r]:
                    seen[r], beats[r] = texts.get(r, ""), beats[r] + 1
            if all(_ended(seen[r]) or beats[r] >= 2 for r in others):
                return
            time.sleep(self.interval / 5)

    def missing(self, patience: float) -> tuple[tuple[int, ...], str]:
        """Find the ranks because of which an exchange broke off.

        Args:
            patience: seconds to wait for a rank to become conspicuous.

        Returns:
            The ranks, and what is known of them; without ranks if nothing is.
        """
        until = time.monotonic() + patience
        while True:
            found = self._conspicuous()
            if found is not None:
                return found
            if time.monotonic() >= until:
                return self._laggards()
            time.sleep(self.interval / 5)

    def absent(self) -> tuple[int, ...]:
        """Return the ranks that have never been heard of."""
        texts = self._known()
        return tuple(r for r in self._others if r not in texts)

    # ---- what the others' signs mean --------------------------------------------------------------------------

    def _known(self) -> dict[int, str]:
        """What was last heard of each rank, as it is now: the thread goes on writing."""
        return self._texts.copy()

    def _conspicuous(self) -> tuple[tuple[int, ...], str] | None:
        now, limit, texts = time.monotonic(), 4 * self.interval, self._known()
        blamed = {int(r) for text in texts.values() if text.startswith(FAILED) for r in text.split()[1:]}
        blamed -= {self._rank}
        left = self._saying(texts, lambda text: text.startswith(LEFT))
        closed = self._saying(texts, lambda text: text == CLOSED)
        if left:
            why = texts[left[0]].removeprefix(LEFT).strip()
            return left, f"left in the middle of what all ranks do together ({why})"
        if blamed:
            return tuple(sorted(blamed)), "as another rank has found"
        if closed:
            return closed, "closed the store, or ended its program, before the others"
        if self._lost or now - self._read_at > limit:
            if self._host is not None and self._host != self._rank:
                return (self._host,), "was not to be reached, and it serves the store that the ranks meet at"
            if len(self._others) == 1:
                return (self._others[0],), "was not to be reached, nor was the store that the ranks meet at"
            return (), "the store that the ranks meet at cannot be reached"
        silent = tuple(r for r in self._others if now - self._changed[r] > limit)
        if silent:
            age = max(now - self._changed[r] for r in silent)
            return silent, f"gave no sign of life for {age:.0f} s: killed, stopped, or cut off from the network"
        gave_up = self._saying(texts, lambda text: text.startswith(FAILED))
        if gave_up:
            return gave_up, "gave up waiting for this rank"
        return None

    def _laggards(self) -> tuple[tuple[int, ...], str]:
        texts = self._known()
        behind = self._saying(texts, lambda text: not _ended(text) and _beat(text)[0] < self.round)
        if behind:
            told = "; ".join(f"the last exchange of rank {r} was {_beat(texts[r])[1]!r}" for r in behind)
            return behind, (
                f"is alive, but did not come to {self.doing!r}: it does something that the others do not ({told})"
            )
        elsewhere = [f"rank {r} is in {_beat(text)[1]!r}" for r, text in sorted(texts.items()) if not _ended(text)]
        return (), "; ".join(["all ranks are alive", f"this one is in {self.doing!r}", *elsewhere])

    def _saying(self, texts: Mapping[int, str], what: Callable[[str], bool]) -> tuple[int, ...]:
        return tuple(r for r in self._others if r in texts and what(texts[r]))

    # ---- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        store, beats = self._store, 0
        try:
            while not self._end.is_set():
                beats += 1
                self._check_line()
                store.set(_key(self._rank), f"{beats} {self.round} {self.doing[:SHOWN]}")
                self._look(store)
                self._end.wait(self.interval)
            self._check_line()
            store.set(_key(self._rank), self._last_words)
        except (RuntimeError, OSError):  # the connection is gone
            self._lost = True

    def _check_line(self) -> None:
        """Raise ConnectionError if the store's server is gone: torch would write its C++ stack to stderr first."""
        if self._line is None:
            return
        try:
            self._line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        raise ConnectionError("the store's server has closed the connection")

    def _look(self, store: Any) -> None:
        texts = self._known()
        known = [r for r in self._others if r in texts or store.check([_key(r)])]
        found = store.multi_get([_key(r) for r in known]) if known else []
        now = time.monotonic()
        for r, told in zip(known, found, strict=True):
            text = told.decode(errors="replace")
            if text != texts.get(r):
                self._texts[r], self._changed[r] = text, now
        self._read_at = now


def _key(rank: int) -> str:
    return f"beat/{rank}"


def _beat(text: str) -> tuple[int, str]:
    """The round of a beat, and what its exchange is."""
    _, number, doing = text.split(" ", 2)
    return int(number), doing


def _ended(text: str) -> bool:
    return text == CLOSED or text.startswith((FAILED, LEFT))
