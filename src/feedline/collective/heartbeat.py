"""Heartbeats of ranks through a shared store, by which a rank finds out which other rank is missing.

Collectives report a failure, but not the rank. A thread of each rank writes ``<beats> <round> <exchange>`` under its
key twice a second. At the end it writes a final message: that the rank closed, which ranks it found missing, or that it
abandoned an exchange. The key of a rank that was killed, stopped or disconnected no longer changes. A rank that is
alive but busy with another part of its program is in an earlier round, or in another exchange. Silence is counted in
beats of the listening rank, so that no rank looks dead on a busy machine, which slows down all of them.

A text may go with the beats of a rank, under a key of its own, for ranks that collect the texts.

Costs: a request and an answer in each beat, and as much for a text that has changed. With more than 64 ranks, beats are
less frequent. If the store does not answer, its host is presumed missing.
"""

from __future__ import annotations

import datetime
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feedline.collective.silence import Silence
from feedline.concurrency.named_threads import begin

CLOSED = "closed"
FAILED = "failed"
LEFT = "left"
#: Beats of silence after which a rank or the store is presumed missing.
SILENT_BEATS = 4
#: Largest number of characters of an exchange's description in a beat.
SHOWN = 300
_BEATS_PER_TEXT = 4


class Heartbeat:
    """Heartbeat of this rank, and the last known heartbeats of its peers.

    Args:
        store: store of torch.distributed, used through a separate connection.
        rank: rank of this process.
        count: number of ranks.
        host: rank that serves the store. None if no rank does.
        connection: connection to the server of the store, which closes when the server ends. None if there is
            none.

    Attributes:
        round: number of exchanges that this rank has begun.
        doing: description of the last exchange.
        interval_s: seconds between beats.
        text: text that goes with the beats. Empty for none. Change it every few seconds at most.
        collects: whether to read the texts of the peers, see `texts`.
        reads: number of times that the peers' beats were read.
        lost: whether the server of the store has ended.
    """

    def __init__(self, store: Any, rank: int, count: int, host: int | None, connection: socket.socket | None) -> None:
        self._store, self._rank, self._host = store.clone(), rank, host
        self._idle_connection = connection
        self._peers = [r for r in range(count) if r != rank]
        self.round, self.doing = 0, "nothing yet"
        self.interval_s = 0.5 * max(1.0, count / 64)
        self.text, self.collects = "", False
        self._sent = ""
        self._carried: dict[int, str] = {}
        self._texts: dict[int, str] = {}
        self._silences = {r: Silence(SILENT_BEATS * self.interval_s) for r in self._peers}
        self.reads, self.lost = 0, False
        self._final_message = CLOSED
        self._end = threading.Event()
        self._thread = begin("heartbeat", self._run)

    def leave(self, words: str = CLOSED) -> None:
        """Write the final message and stop the heartbeat. Idempotent."""
        if not self._end.is_set():
            self._final_message = words
            self._end.set()
        # A store that does not answer blocks the thread, which ends with its connection.
        self._thread.end(2 * self.interval_s)

    def disconnect(self) -> None:
        """Leave, and close the connections."""
        self.leave()
        self._store = None
        if self._idle_connection is not None:
            self._idle_connection.close()

    def linger(self, seconds: float, missing: Sequence[int] = ()) -> None:
        """Keep serving the store until all ranks except ``missing`` ones have read the final message of this rank.

        Args:
            seconds: seconds of silence of these ranks after which they will not read it.
            missing: ranks for which not to wait.
        """
        peers = [r for r in self._peers if r not in missing]
        texts = self._last_messages()
        last = {r: texts.get(r, "") for r in peers}
        beats = dict.fromkeys(peers, 0)
        silence = Silence(seconds)
        while not silence.too_long and not self.lost:
            self._read_beats(self._store)
            texts = self._last_messages()
            for r in peers:
                if texts.get(r, "") != last[r]:
                    last[r], beats[r] = texts.get(r, ""), beats[r] + 1
                    if beats[r] <= 2:  # later beats of one rank are no sign of life of the others
                        silence.reset()
            if all(_has_ended(last[r]) or beats[r] >= 2 for r in peers):
                return
            time.sleep(self.interval_s / 5)
            silence.add(self.interval_s / 5)

    def missing(self, beats: int) -> tuple[tuple[int, ...], str]:
        """Find the ranks that made an exchange fail.

        Args:
            beats: number of beats to wait for evidence, at least 1.

        Returns:
            The ranks and the reason. No ranks if none can be identified.
        """
        first = reads = self.reads
        store = Silence(SILENT_BEATS * self.interval_s)
        while True:
            verdict = self._identify_missing(self.lost or store.too_long)
            if verdict is not None:
                return verdict
            if reads - first >= beats:
                return self._laggards()
            time.sleep(self.interval_s / 5)
            store.add(self.interval_s / 5)
            if self.reads > reads:
                store.reset()
                reads = self.reads

    def absent(self) -> tuple[int, ...]:
        """Return the ranks that have never sent a heartbeat."""
        texts = self._last_messages()
        return tuple(r for r in self._peers if r not in texts)

    def texts(self) -> dict[int, str]:
        """Return the last known texts of all ranks that have one, by rank. Only of this rank unless it `collects`."""
        texts = self._carried | ({self._rank: self.text} if self.text else {})
        return {r: texts[r] for r in sorted(texts)}

    # ---- diagnosis --------------------------------------------------------------------------------------------

    def _last_messages(self) -> dict[int, str]:
        """Return a copy of the last message of each rank, as the thread keeps updating them."""
        return self._texts.copy()

    def _identify_missing(self, unreachable: bool) -> tuple[tuple[int, ...], str] | None:
        texts = self._last_messages()
        blamed = {int(r) for text in texts.values() if text.startswith(FAILED) for r in text.split()[1:]}
        blamed -= {self._rank}
        departed = self._ranks_where(texts, lambda text: text.startswith(LEFT))
        closed = self._ranks_where(texts, lambda text: text == CLOSED)
        if departed:
            why = texts[departed[0]].removeprefix(LEFT).strip()
            return departed, f"abandoned a collective exchange ({why})"
        if blamed:
            return tuple(sorted(blamed)), "as reported by another rank"
        if closed:
            return closed, "closed the store, or ended its program, before the others"
        if unreachable:
            if self._host is not None and self._host != self._rank:
                return (self._host,), "could not be reached, and it serves the rendezvous"
            if len(self._peers) == 1:
                return (self._peers[0],), "could not be reached, nor could the rendezvous"
            return (), "the rendezvous could not be reached"
        silent = tuple(r for r in self._peers if self._silences[r].too_long)
        if silent:
            age = max(self._silences[r].seconds for r in silent)
            return silent, f"sent no heartbeat for {age:.0f} s: killed, stopped, or disconnected from the network"
        gave_up = self._ranks_where(texts, lambda text: text.startswith(FAILED))
        if gave_up:
            return gave_up, "gave up waiting for this rank"
        return None

    def _laggards(self) -> tuple[tuple[int, ...], str]:
        texts = self._last_messages()
        lagging = self._ranks_where(texts, lambda text: not _has_ended(text) and _beat(text)[0] < self.round)
        if lagging:
            last = "; ".join(f"the last exchange of rank {r} was {_beat(texts[r])[1]!r}" for r in lagging)
            return lagging, f"is alive, but did not enter {self.doing!r}: it is doing something else ({last})"
        exchanges = [f"rank {r} is in {_beat(text)[1]!r}" for r, text in sorted(texts.items()) if not _has_ended(text)]
        return (), "; ".join(["all ranks are alive", f"this one is in {self.doing!r}", *exchanges])

    def _ranks_where(self, texts: Mapping[int, str], condition: Callable[[str], bool]) -> tuple[int, ...]:
        return tuple(r for r in self._peers if r in texts and condition(texts[r]))

    # ---- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        store, beats = self._store, 0
        try:
            while not self._end.is_set():
                beats += 1
                self._check_server()
                store.set(_key(self._rank), f"{beats} {self.round} {self.doing[:SHOWN]}")
                self._read_beats(store)
                if beats % _BEATS_PER_TEXT == 0:
                    self._carry_texts(store)
                self._end.wait(self.interval_s)
                for silence in self._silences.values():
                    silence.add(self.interval_s)
            self._check_server()
            store.set(_key(self._rank), self._final_message)
        except (RuntimeError, OSError):  # the connection is gone
            self.lost = True

    def _check_server(self) -> None:
        """Raise ConnectionError if the store's server has ended, before torch prints its C++ stack to stderr.

        Called before every request, so that only a server that ends during a request is not noticed.
        """
        if self._idle_connection is None:
            return
        try:
            self._idle_connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        raise ConnectionError("the store's server has closed the connection")

    def _read_beats(self, store: Any) -> None:
        texts = self._last_messages()
        self._check_server()
        beating = [r for r in self._peers if r in texts or store.check([_key(r)])]
        self._check_server()
        values = store.multi_get([_key(r) for r in beating]) if beating else []
        for r, value in zip(beating, values, strict=True):
            text = value.decode(errors="replace")
            if text != texts.get(r):
                self._texts[r] = text
                self._silences[r].reset()
        self.reads += 1

    def _carry_texts(self, store: Any) -> None:
        text = self.text
        if text != self._sent:
            self._check_server()
            store.set(_text_key(self._rank), text)
            self._sent = text
        if self.collects:
            self._check_server()
            carrying = [r for r in self._peers if r in self._carried or store.check([_text_key(r)])]
            values = store.multi_get([_text_key(r) for r in carrying]) if carrying else []
            texts = {r: value.decode(errors="replace") for r, value in zip(carrying, values, strict=True)}
            self._carried = texts  # replaced, as other threads read it


def wait_for_first_beats(store: Any, count: int, span: datetime.timedelta) -> None:
    """Wait until every rank has sent a heartbeat.

    Raises:
        RuntimeError: a rank has sent none within ``span``.
    """
    store.wait([_key(rank) for rank in range(count)], span)


def _key(rank: int) -> str:
    return f"beat/{rank}"


def _text_key(rank: int) -> str:
    return f"text/{rank}"


def _beat(text: str) -> tuple[int, str]:
    """Return the round of a beat, and the description of its exchange."""
    _, number, doing = text.split(" ", 2)
    return int(number), doing


def _has_ended(text: str) -> bool:
    return text == CLOSED or text.startswith((FAILED, LEFT))
