"""Frames that are kept for later minibatches: within their room, and only where they are used."""

import numpy as np

from feedline.video import decoded_frames
from feedline.video.decoded_frames import DecodedFrames

FRAME = np.zeros((10, 10, 3), np.uint8)


def frames(*numbers):
    return {number: np.full_like(FRAME, number % 256) for number in numbers}


def test_frames_of_a_file_are_kept_by_number():
    store = DecodedFrames()
    store.put(b"a", frames(1, 2), {1})
    store.put(b"b", frames(3), {3})
    kept = store.get(b"a", [1, 2, 3])
    assert sorted(kept) == [1, 2]
    assert (kept[2] == 2).all()


def test_the_latest_ones_are_kept(monkeypatch):
    monkeypatch.setattr(decoded_frames, "MEMORY_BYTES", 5 * FRAME.nbytes)
    store = DecodedFrames()
    store.put(b"a", frames(*range(4)), set())
    store.get(b"a", [0])
    store.put(b"a", frames(*range(4, 7)), set())
    assert sorted(store.get(b"a", list(range(7)))) == [0, 3, 4, 5, 6]


def test_frames_are_kept_in_advance_as_long_as_they_are_used():
    store, worth = DecodedFrames(), []
    for group in range(400):
        worth.append(store.are_worth())
        if worth[-1]:
            store.put(b"a", frames(*range(group * 10, group * 10 + 10)), {group * 10 + 9})
        if group < 100:
            store.get(b"a", list(range(group * 10, group * 10 + 10)))
    assert all(worth[:200])
    assert 0 < sum(worth[340:]) < 10  # a sample


def test_frames_that_are_not_used_are_not_kept_in_advance():
    store = DecodedFrames()
    worth = []
    for group in range(400):
        worth.append(store.are_worth())
        if worth[-1]:
            store.put(b"a", frames(*range(group * 10, group * 10 + 10)), {group * 10 + 9})
    assert all(worth[:50])
    assert 0 < sum(worth[100:]) < 30
