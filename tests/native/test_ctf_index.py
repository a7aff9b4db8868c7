"""The native CTF indexer equals its oracle, however the file is cut into blocks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feedline import _native
from tests.native.ctf_texts import any_text
from tests.oracles import ctf as oracle

ENTRY = np.dtype([("key", "<u8"), ("offset", "<u8"), ("size", "<u4"), ("samples", "<u4")])
CODES = {code: name for name, code in _native.CTF_ERRORS.items()}


def native_index(text, cuts=(), size_stream=None, skip_ids=False, lenient=False):
    """(entries, error or None, has_ids), the text fed in pieces that end at `cuts`."""
    indexer = _native.CtfIndexer(size_stream, skip_ids, lenient)
    bounds = [0, *sorted(cuts), len(text)]
    found = []
    for a, b in itertools.pairwise(bounds):
        found.append(indexer.feed(np.frombuffer(text[a:b], np.uint8)))
    found.append(indexer.finish())
    entries = [oracle.Entry(*map(int, e)) for e in np.concatenate(found).view(ENTRY)]
    error = indexer.error and (CODES[indexer.error[0]], indexer.error[1])
    assert indexer.bytes == len(text)
    if error is None:
        assert indexer.lines == text.count(b"\n") + (not text.endswith(b"\n"))
    return entries, error, indexer.has_ids


def slow_index(text, size_stream=None, skip_ids=False, lenient=False):
    try:
        entries, has_ids = oracle.index(text, size_stream, skip_ids, lenient)
    except oracle.IndexFailure as failure:
        return failure.entries, (failure.code, failure.byte), None
    return entries, None, has_ids


def check(text, cuts, **options):
    entries, error, has_ids = native_index(text, cuts, **options)
    expected, expected_error, expected_ids = slow_index(text, **options)
    assert error == expected_error
    assert entries == expected
    if error is None:
        assert has_ids == expected_ids


@given(
    text=any_text,
    seed=st.integers(0, 2**32 - 1),
    size_stream=st.sampled_from([None, None, b"A", b"AB", b"sparse_one"]),
    skip_ids=st.booleans(),
    lenient=st.booleans(),
)
@example(b"\xef\xbb", 0, None, True, True)
@example(b"\xef\xbb\n|A 1\n", 0, None, True, True)
@example(b"\xff", 0, None, True, False)
@example(b"\xff\xfe", 1, None, False, False)
@example(b"12", 0, None, False, False)
@example(b"1 |A\n123456789012", 3, None, False, True)
@example(b"1 |A\n18446744073709551616", 3, None, False, False)
@example(b"1 |A\n|A", 3, b"A", False, False)
@example(b"|A 1\n\n \t\r\n|A 1\n \n", 5, None, False, True)
@example(b"1 |A 1\n\n5\n \n", 5, None, False, True)
def test_equals_oracle_for_any_cut(text, seed, size_stream, skip_ids, lenient):
    random = np.random.default_rng(seed)
    cuts = random.integers(0, len(text) + 1, random.integers(0, 8)).tolist()
    check(text, cuts, size_stream=size_stream, skip_ids=skip_ids, lenient=lenient)


@given(text=any_text, size_stream=st.sampled_from([None, b"A"]), lenient=st.booleans())
def test_equals_oracle_byte_by_byte(text, size_stream, lenient):
    check(text, range(len(text)), size_stream=size_stream, lenient=lenient)


@given(
    lines=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 150), st.booleans()), min_size=30, max_size=200),
    cut=st.integers(0, 20000),
)
def test_long_texts_cross_many_masks(lines, cut):
    rows = [b"%d |%s %s\n" % (key, b"A" if named else b"B", b"1" * fill) for key, fill, named in lines]
    text = b"".join(rows)
    for size_stream in (None, b"A"):
        check(text, [min(cut, len(text))], size_stream=size_stream)
        check(text, [min(cut, len(text))], size_stream=size_stream, skip_ids=True, lenient=True)


def test_sequence_of_four_gigabytes_is_refused():
    block = np.frombuffer(b"|A 1 1 1" * (1 << 19), np.uint8)  # 4 MiB without a newline
    indexer = _native.CtfIndexer(None)
    for _ in range(1025):
        assert len(indexer.feed(block)) == 0
    assert len(indexer.finish()) == 0
    assert (CODES[indexer.error[0]], indexer.error[1]) == ("sequence_too_long", 0)


def test_names_are_checked():
    for name in (b"", b"#x", b"a b", b"a|b", b"\xc3\xa9"):
        with pytest.raises(ValueError, match="field name"):
            _native.CtfIndexer(name)
