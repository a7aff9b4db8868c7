"""Byte strings in the gather: copies equal plain slices, and valid UTF-8 is what Python decodes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.data.faults import BadEntriesError

# Boundaries of what UTF-8 allows, and a bit beyond each.
PIECES = [
    *(bytes([b]) for b in (0x00, 0x41, 0x7F, 0x80, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xED, 0xF0, 0xF4, 0xF5, 0xFF)),
    *(b"\xe0\x9f\xbf", b"\xe0\xa0\x80", b"\xed\x9f\xbf", b"\xed\xa0\x80", b"\xee\x80\x80", b"\xef\xbf\xbf"),
    *(b"\xf0\x8f\xbf\xbf", b"\xf0\x90\x80\x80", b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xc3\xa9", b"abcdefgh"),
]
texts = st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join) | st.binary(max_size=20)


def is_utf8(text):
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def flat(strings):
    return np.frombuffer(b"".join(strings), np.uint8), np.cumsum([0, *map(len, strings)], dtype=np.int64)


@given(st.lists(texts, max_size=8))
def test_utf8_is_what_python_decodes(strings):
    expected = next((i for i, text in enumerate(strings) if not is_utf8(text)), -1)
    assert _native.first_bad_text(*flat(strings)) == expected


@pytest.mark.parametrize("first", range(256))
def test_every_pair_of_bytes(first):
    """Each is alone, so that no neighbour completes it. After seven ASCII bytes it crosses words of the fast path."""
    for prefix in (b"", b"x" * 7):
        strings = [prefix + bytes([first, second]) for second in range(256)]
        for text in strings:
            assert (_native.first_bad_text(*flat([text])) == -1) == is_utf8(text), text


@given(st.data(), st.lists(st.lists(st.binary(max_size=12), max_size=4), min_size=1, max_size=12), st.booleans())
def test_a_gather_is_plain_slicing(data, sequences, ragged):
    if not ragged:
        sequences = [s[:1] or [b""] for s in sequences]
    strings, bounds = flat([sample for sequence in sequences for sample in sequence])
    offsets = np.cumsum([0] + [len(s) for s in sequences], dtype=np.int64) if ragged else None
    gatherer = _native.Gatherer(["bytes", None])
    numbers = np.arange(len(sequences))
    gatherer.add(0, [(bounds, strings, offsets), (numbers, None)])
    gatherer.add(5, [(bounds, strings, offsets), (numbers, None)])
    which = np.array(data.draw(st.lists(st.integers(0, len(sequences) - 1), max_size=30)), np.int64)
    slots = np.array([data.draw(st.sampled_from([0, 5])) for _ in which], np.uint32)
    (got_bounds, got, got_offsets), (rows, _) = gatherer.gather(slots, which)
    assert rows.tolist() == which.tolist()
    found = [got[a:b].tobytes() for a, b in pairwise(got_bounds)]
    assert found == [sample for i in which for sample in sequences[i]]
    if ragged:
        assert np.diff(got_offsets).tolist() == [len(sequences[i]) for i in which]
    else:
        assert got_offsets is None


@given(st.lists(texts, min_size=1, max_size=20), st.data())
def test_invalid_text_is_named_and_blanked(strings, data):
    """One entry a sequence: the first byte at which Python stops."""
    gatherer = _native.Gatherer(["str"])
    flatter, bounds = flat(strings)
    gatherer.add(0, [(bounds, flatter, None)])
    which = np.array(data.draw(st.lists(st.integers(0, len(strings) - 1), min_size=1, max_size=30)), np.int64)
    bad = [k for k, i in enumerate(which) if not is_utf8(strings[i])]
    if not bad:
        gatherer.gather(None, which)
        return
    with pytest.raises(BadEntriesError, match="expected text in UTF-8, got the byte 0x") as caught:
        gatherer.gather(None, which)
    ((ends, copy, _),) = caught.value.arrays
    got = [copy[a:b].tobytes() for a, b in pairwise(ends)]
    assert got == [b"\0" * len(strings[i]) if k in bad else strings[i] for k, i in enumerate(which)]
    assert [entry.place for entry in caught.value.entries] == bad
    for entry in caught.value.entries:
        text = strings[which[entry.place]]
        with pytest.raises(UnicodeDecodeError) as python:
            text.decode()
        at = entry.address - flatter.ctypes.data - int(bounds[which[entry.place]])
        assert (at, entry.entry) == (python.value.start, text[python.value.start])


@pytest.mark.parametrize("threads", [1, 3])
def test_large_texts_are_checked_by_all_threads(threads):
    """The rows of one thread begin where another thread's rows end."""
    strings = [b"a" * (i % 5000) + "é".encode() for i in range(2000)]
    strings[1500] += b"\xc3"
    gatherer = _native.Gatherer(["str"])
    data, bounds = flat(strings)
    gatherer.add(0, [(bounds, data, None)])
    order = np.random.default_rng(0).permutation(2000)
    with pytest.raises(BadEntriesError) as caught:
        gatherer.gather(None, order, threads)
    assert [order[entry.place] for entry in caught.value.entries] == [1500]
    order = order[order != 1500]
    ((_, copy, _),) = gatherer.gather(None, order, threads)
    assert copy.tobytes() == b"".join(strings[i] for i in order)


def test_offsets_beyond_two_and_four_gibibytes(tmp_path):
    """In a sparse file, of which only the strings at the ends are touched."""
    bounds = np.array([0, 3, 2**31 + 5, 2**31 + 9, 2**32 + 7, 2**32 + 10], np.int64)
    path = tmp_path / "holes"
    with open(path, "wb") as file:
        for at, text in ((0, b"abc"), (2**31 + 5, b"defg"), (2**32 + 7, b"hij")):
            file.seek(at)
            file.write(text)
    data = np.memmap(path, np.uint8, "r")
    corpus = fl.ArrayDeserializer(x=fl.Value.from_buffer(data, bounds))
    assert corpus.chunks()[0].bytes == 2**32 + 10
    source = fl.MinibatchSource(corpus, shuffle=False)
    assert corpus.select(np.array([4, 2, 0]))["x"].tolist() == [b"hij", b"defg", b"abc"]
    assert corpus.read(0)["x"].slice(4, 5).tolist() == [b"hij"]
    assert source.next_minibatch(1)["x"].tolist() == [b"abc"]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ((np.array([0, 2]), np.zeros(3, np.uint8), None), ValueError, "end at the number of bytes, 3, got 2"),
        ((np.array([1, 3]), np.zeros(3, np.uint8), None), ValueError, "start at 0, got 1"),
        ((np.array([0, 2, 1, 3]), np.zeros(3, np.uint8), None), ValueError, "never decrease"),
        ((np.array([0, 3]), np.zeros(3, np.int8), None), ValueError, "uint8 `data`"),
        ((np.array([0, 3]), np.zeros((3, 1), np.uint8), None), ValueError, "one-dimensional"),
        ((np.array([0, 3]), np.zeros(3, np.uint8), np.array([0, 2])), ValueError, "number of samples, 1, got 2"),
        ((np.array([0, 3]),), ValueError, "bounds, data, offsets"),
        ((np.array([0, 4]), np.zeros(3, np.uint8)), ValueError, "begin and end of each sample within"),
        ((np.array([0, 1, 2]), np.zeros(3, np.uint8)), ValueError, "begin and end of each sample within"),
        ((np.array([0, 3], np.int32), np.zeros(3, np.uint8), None), (ValueError, TypeError), "bounds"),
    ],
)
def test_impossible_arrays_are_refused(value, error, message):
    with pytest.raises(error, match=message):
        _native.Gatherer(["bytes"]).add(0, [value])
