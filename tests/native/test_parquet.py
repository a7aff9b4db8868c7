"""Sizes in Parquet's footers and page headers: equal to pyarrow for valid files, to the oracle for damaged ones."""

from __future__ import annotations

import functools
import io
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline import _native
from tests.effort import examples
from tests.oracles import parquet as oracle

KINDS = {
    "plain": {},
    "index": {"write_page_index": True, "write_page_checksum": True, "data_page_size": 256, "row_group_size": 40},
    "v2": {"data_page_version": "2.0", "write_page_index": True, "compression": "zstd", "row_group_size": 70},
    "bare": {"compression": "none", "use_dictionary": False, "write_statistics": False},
}


@functools.cache
def written(kind: str) -> bytes:
    n = 100
    lists = pa.ListArray.from_arrays(pa.array(np.arange(n + 1, dtype="i4") * 3), pa.array(np.arange(3 * n) % 7))
    table = pa.table(
        {"x": np.arange(n, dtype="f4"), "words": lists, "name": [f"name {i % 9}" if i % 5 else None for i in range(n)]}
    )
    file = io.BytesIO()
    pq.write_table(table, file, **KINDS[kind])
    return file.getvalue()


def footer_of(data: bytes) -> bytes:
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def native_footer(data: bytes):
    """As the twin's, None for damage."""
    try:
        rows, width, *columns = _native.parquet_footer(data)
    except ValueError as error:
        what, byte = error.args
        assert isinstance(what, str)
        assert 0 <= byte <= len(data)
        return None
    assert all(array.dtype == np.int64 and array.shape == (len(rows) * width,) for array in columns)
    table = np.stack(columns, axis=1).reshape(len(rows), width, 5).tolist()
    return rows.tolist(), [[tuple(column) for column in group] for group in table]


def twin_footer(data: bytes):
    try:
        return oracle.footer(data)
    except oracle.Damage:
        return None


def damaged(data: bytes, seed: int) -> bytes:
    """Some bytes changed, put in or taken out."""
    rng, out = random.Random(seed), bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(out))
        kind = rng.randrange(5)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.choice([0, 1, 0x15, 0x16, 0x19, 0x1C, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif kind == 2:
            del out[at : at + rng.randint(1, 4)]
        elif kind == 3:
            out[at:at] = rng.randbytes(rng.randint(1, 4))
        else:
            begin = rng.randrange(len(out))
            out[at:at] = out[begin : begin + rng.randint(1, 40)]
        out = out or bytearray(b"\0")
    return bytes(out)


@pytest.mark.parametrize("kind", KINDS)
def test_figures_match_pyarrow(kind):
    data = written(kind)
    metadata = pq.read_metadata(io.BytesIO(data))
    rows, columns = native_footer(footer_of(data))
    assert len(rows) == metadata.num_row_groups
    for g, group in enumerate(columns):
        theirs = metadata.row_group(g)
        assert rows[g] == theirs.num_rows
        assert len(group) == metadata.num_columns
        for c, (values, uncompressed, compressed, begin, nulls) in enumerate(group):
            column = theirs.column(c)
            assert (values, uncompressed, compressed) == (
                column.num_values,
                column.total_uncompressed_size,
                column.total_compressed_size,
            )
            assert nulls == (column.statistics.null_count if column.is_stats_set else -1)
            # Pages fill the column exactly, and hold all its values.
            at, seen, bytes_out = begin, 0, 0
            while at < begin + compressed:
                header, inside, outside, count = _native.parquet_page(data[at : at + 4096])
                at, seen, bytes_out = at + header + inside, seen + count, bytes_out + header + outside
            assert (at, seen, bytes_out) == (begin + compressed, values, uncompressed)
    assert (rows, columns) == twin_footer(footer_of(data))


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 2**32))
@settings(max_examples=examples(750))
def test_damaged_footers_are_read_as_the_twin_reads_them(kind, seed):
    data = damaged(footer_of(written(kind)), seed)
    assert native_footer(data) == twin_footer(data)


@given(st.binary(max_size=60))
def test_any_bytes(data):
    assert native_footer(data) == twin_footer(data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_footer_is_damage_at_every_byte(kind):
    data = footer_of(written(kind))
    for n in range(len(data)):
        assert native_footer(data[:n]) is None


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 2**32), st.integers(0, 2), st.integers(1, 200))
@settings(max_examples=examples(250))
def test_page_headers_are_read_as_the_twin_reads_them(kind, seed, column, size):
    data = written(kind)
    begin = native_footer(footer_of(data))[1][0][column][3]
    page = data[begin : begin + size]
    if seed % 3:
        page = damaged(page, seed)
    try:
        expected = oracle.page(page)
    except oracle.Damage:
        expected = "damage"
    try:
        got = _native.parquet_page(page)
    except ValueError:
        got = "damage"
    # A damaged footer may extend past the given bytes.
    assert got == expected or (got == "damage" and expected is None)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x1c" * 200, "too deep"),
        (b"\x49\xfc\xff\xff\xff\xff\x0f", "a structure longer than its bytes"),  # a list of 2^32 row groups
        (b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", "a structure longer than its bytes"),  # 2^64 - 1 bytes
        (b"\x1b\xff\xff\xff\xff\x0f\x88", "a structure longer than its bytes"),
        (b"\x16" + b"\xff" * 11, "more than 64 bits"),
        (b"\x1f\x00", "unknown type"),
        (b"\x49\x15\x02\x00", "a wrong type for `row_groups`"),
        (b"\x15\x02\x00", "no `row_groups`"),
        (b"\x8c\x00\x00", "encrypted"),
        (b"", "a structure longer than its bytes"),
    ],
)
def test_messages_about_damage(data, message):
    with pytest.raises(ValueError, match=message):
        _native.parquet_footer(data)
