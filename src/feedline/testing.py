"""Assertions of feedline's laws, for your formats, sources and feeds.

`assert_resumes` states the first law: from every point, a restored feed continues exactly like one that never stopped.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from feedline.data import Minibatch
from feedline.data.value import SparseValue

__all__ = ["assert_resumes", "bytes_digest", "sequences_of"]


def sequences_of(minibatches: Iterable[Minibatch]) -> list[tuple[int, bytes]]:
    """Return every delivered sequence in order: its ordinal, and a digest of its bytes in all streams."""
    out = []
    for minibatch in minibatches:
        columns = [value.sequences() for value in minibatch.values()]
        for i, ordinal in enumerate(minibatch.ids.tolist()):
            out.append((ordinal, _digest(column[i] for column in columns)))
    return out


def bytes_digest(minibatches: Iterable[Minibatch]) -> str:
    """Return a digest of everything delivered, independent of the borders of minibatches."""
    h = hashlib.blake2b(digest_size=16)
    for ordinal, content in sequences_of(minibatches):
        h.update(ordinal.to_bytes(8, "little") + content)
    return h.hexdigest()


def assert_resumes(make_feed: Callable[[], Any], sizes: Sequence[int] = (1, 3, 7, 64), minibatches: int = 4) -> None:
    """Check that a feed resumes from every minibatch, also under another minibatch size.

    At each minibatch of each size a feed is restored, and continues under the next of the sizes.

    Args:
        make_feed: function that creates a feed with ``next_minibatch(size)``, ``state_dict`` and ``load_state_dict``.
        sizes: minibatch sizes to stop and to continue with.
        minibatches: number of minibatches of the largest size to check.

    Raises:
        AssertionError: a restored feed delivers other sequences than an uninterrupted one.
    """
    uninterrupted = sequences_of(_take(make_feed(), max(sizes), minibatches))
    for first, size in enumerate(sizes):
        feed = make_feed()
        passed = 0
        for next_size in itertools.islice(itertools.cycle(sizes), first, None):
            if passed >= len(uninterrupted):
                break
            restored = make_feed()
            restored.load_state_dict(json.loads(json.dumps(feed.state_dict())))
            got = sequences_of(_take(restored, next_size, 2))
            expected = uninterrupted[passed : passed + len(got)]
            assert got[: len(expected)] == expected, (
                f"expected the feed to continue at sequence {passed} with ordinals {[o for o, _ in expected][:8]}, "
                f"got {[o for o, _ in got][:8]} (stopped under size {size}, continued under size {next_size})"
            )
            minibatch = feed.next_minibatch(size)
            if not minibatch:
                break
            got = sequences_of([minibatch])
            expected = uninterrupted[passed : passed + len(got)]
            assert got[: len(expected)] == expected, f"the order depends on the minibatch size at sequence {passed}"
            passed += len(got)


def _take(feed: Any, size: int, count: int) -> list[Minibatch]:
    return list(itertools.takewhile(bool, (feed.next_minibatch(size) for _ in range(count))))


def _digest(streams: Iterable[Any]) -> bytes:
    h = hashlib.blake2b(digest_size=16)
    for stream in streams:
        if isinstance(stream, list):  # of byte strings
            h.update(repr(stream).encode())
            continue
        arrays = (stream.indptr, stream.indices, stream.values) if isinstance(stream, SparseValue) else (stream,)
        for array in arrays:
            h.update(str((array.shape, array.dtype.str)).encode())
            h.update(np.ascontiguousarray(array).tobytes())
    return h.digest()
