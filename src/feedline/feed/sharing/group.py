"""The ranks of one machine that get the same sequences: one makes each minibatch, the others map it.

The first rank that needs a minibatch leads, and the others follow. They need no agreement: who can bind the group's
address leads, and after its end the next one does. A minibatch is known by a digest of what determines it, so a
follower gets exactly what it would have made. It makes the minibatch itself where the leader is gone, is elsewhere, or
takes longer than is worth waiting for.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pickle
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from feedline import system
from feedline.data import Schema, Value
from feedline.feed.sharing.follower import Follower
from feedline.feed.sharing.group_messages import connect, listen
from feedline.feed.sharing.leader import Leader
from feedline.feed.sharing.value_memory import ValueMemory

#: Seconds that a follower waits for a minibatch that the leader makes, or this many times what it took itself.
PATIENCE_S, PATIENCE_TIMES = 2.0, 3.0
#: Minibatches in a row that did not come, after which a follower reads ahead for itself, and asks less often.
MISSES = 2
#: At most so many minibatches pass between two requests.
LONGEST_GAP = 32
_TRIES, _TRY_AGAIN_S = 3, 0.01
#: Variables that name the job of a rank.
_JOB = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID")

# Sources over the same data are told apart by their number in the process, the same on every rank.
_numbers: defaultdict[bytes, Iterator[int]] = defaultdict(itertools.count)


def address_of(ranks: Sequence[int], content: Sequence[Any]) -> bytes | None:
    """Return a new address at which the sources of a group meet.

    Args:
        ranks: ranks of the group.
        content: all that determines the values of a sequence besides its place, the same for all ranks.

    Returns:
        The address. None if the content cannot be pickled, so that ranks cannot know whether they have the same, or if
        the system has no sockets with names without files.
    """
    if system.PORTABLE:
        return None
    try:
        parts = pickle.dumps((os.geteuid(), [os.environ.get(name) for name in _JOB], tuple(ranks), tuple(content)), 4)
    except Exception:
        return None
    digest = hashlib.blake2b(parts, digest_size=16).digest()
    return b"\0feedline-group-%s-%d" % (digest.hex().encode(), next(_numbers[digest]))


class Group:
    """The part of a source in its group.

    Args:
        address: address of the group, see `address_of`.
        schema: streams of the values that are handed on.
    """

    def __init__(self, address: bytes, schema: Schema) -> None:
        self._address, self._memory = address, ValueMemory(schema)
        self._leader: Leader | None = None
        self._follower: Follower | None = None
        self._misses = self._pause = 0
        self._began = self._made_s = 0.0
        self._pid = os.getpid()

    @property
    def follows(self) -> bool:
        """Whether minibatches come from the leader, so that nothing should be read ahead."""
        return self._follower is not None and self._misses < MISSES and self._pid == os.getpid()

    def receive(self, key: bytes, place: int) -> dict[str, Value] | None:
        """Return the values of a minibatch that another rank has made. None: this rank has to make it.

        Args:
            key: digest of the minibatch.
            place: samples on the axis before it.
        """
        values = None
        if self._pid == os.getpid():
            try:
                values = self._ask(key, place)
            except BaseException:  # an interrupt, after which a reply may still come
                self._leave()
                raise
        self._began = time.monotonic()
        return values

    def offer(self, key: bytes, values: Mapping[str, Value] | None, after: int) -> None:
        """Hand a minibatch on that this rank had to make.

        Args:
            key: digest of the minibatch.
            values: its values. None if it could not be made, or others must see for themselves what is wrong with it.
            after: samples on the axis before the next one.
        """
        self._made_s = time.monotonic() - self._began
        if self._leader is not None and self._pid == os.getpid():
            self._leader.hand_on(key, values, after)

    def close(self) -> None:
        """Leave the group. Idempotent."""
        if self._pid == os.getpid():
            if self._leader is not None:
                self._leader.close()
            if self._follower is not None:
                self._follower.close()
        self._leader = self._follower = None

    def _ask(self, key: bytes, place: int) -> dict[str, Value] | None:
        if self._leader is None and self._follower is None:
            with contextlib.suppress(OSError):  # without descriptors this rank reads for itself
                self._join()
        if self._leader is not None:
            self._leader.begin(place)
        if self._follower is None:
            return None
        if self._pause:
            self._pause -= 1
            return None
        try:
            memory = self._follower.ask(key, place, max(PATIENCE_S, PATIENCE_TIMES * self._made_s))
        except OSError:  # the leader is gone, and this rank may be the next
            self._leave()
            return self._ask(key, place)
        if memory is None:
            self._misses += 1
            self._pause = min(1 << max(self._misses - MISSES, 0), LONGEST_GAP + 1) - 1
            return None
        self._misses = 0
        return self._memory.read(memory)

    def _leave(self) -> None:
        if self._follower is not None:
            self._follower.close()
        self._follower, self._misses, self._pause = None, 0, 0

    def _join(self) -> None:
        """Follow the leader if there is one, else become it."""
        for _ in range(_TRIES):
            channel = connect(self._address)
            if channel is not None:
                self._follower = Follower(channel)
                return
            listener = listen(self._address)
            if listener is not None:
                self._leader = Leader(listener, self._memory)
                weakref.finalize(self, self._leader.close)
                return
            time.sleep(_TRY_AGAIN_S)  # another rank has bound the address, and is about to listen
