"""The native CTF parser equals its oracle: values bit for bit, errors field for field."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from feedline import _native
from tests.effort import EFFORT, examples
from tests.native.ctf_texts import FIELDS, any_text, damaged, texts
from tests.oracles import ctf as oracle
from tests.oracles.ctf import Entry, Field

ERROR = np.dtype(
    [("byte", "<u8"), ("expected", "<i8"), ("got", "<i8"), ("sequence", "<u4"), ("stream", "<i2"), ("code", "<u2")]
)
ENTRY = np.dtype([("key", "<u8"), ("offset", "<u8"), ("size", "<u4"), ("samples", "<u4")])
CODES = {code: name for name, code in _native.CTF_ERRORS.items()}
GENEROUS = 1 << 40
SMALL = [f for f in FIELDS if f.dim < 100]


def make_parser(fields, size_stream=-1, lenient=False, fill=1, memory_limit=GENEROUS):
    return _native.CtfParser(
        [f.name for f in fields],
        [f.dim for f in fields],
        [f.sparse for f in fields],
        [f.float64 for f in fields],
        [fill] * len(fields),
        size_stream,
        lenient,
        memory_bytes=memory_limit,
    )


def as_index(entries):
    """Entries of the oracle's index as the indexer returns them."""
    return as_entries(*zip(*[(e.offset, e.size, e.samples) for e in entries], strict=True)) if entries else as_entries()


def as_entries(offset=(), size=(), samples=1):
    table = np.zeros(len(offset), ENTRY)
    table["offset"], table["size"], table["samples"] = offset, size, samples
    return table.view(np.uint8)


def native_parse(text, entries, fields, *, size_stream=-1, lenient=False, fill=1, allowed_errors=-1, pad=b"7"):
    """Parse into the oracle's `Parsed`. The padding around the text is hostile on purpose."""
    buffer = np.frombuffer(pad * 64 + text + pad * 64, np.uint8)
    streams, valid, errors, left = make_parser(fields, size_stream, lenient, fill).parse(
        buffer, 64, as_index(entries), 0, allowed_errors
    )
    n = len(entries)
    result = oracle.Parsed(errors_left=left)
    result.valid = [True] * n if valid is None else [bool(v) for v in valid]
    assert valid is None or not valid.all()
    per_stream = []
    for number, (f, arrays) in enumerate(zip(fields, streams, strict=True)):
        *data, offsets, missing = arrays
        rows = len(data[0]) - f.sparse
        if offsets is None:
            assert rows == n
            offsets = np.arange(n + 1)
        assert offsets[0] == 0
        assert offsets[-1] == rows
        assert (np.diff(offsets) >= 0).all()
        assert data[-1].dtype == (np.float64 if f.float64 else np.float32)
        if f.sparse:
            indptr, indices, values = data
            assert indptr[0] == 0
            assert indptr[-1] == len(indices) == len(values)
            bounds = indptr.tolist()
            items = [list(zip(indices[a:b].tolist(), values[a:b], strict=True)) for a, b in itertools.pairwise(bounds)]
        else:
            assert data[0].shape == (rows, f.dim)
            items = [list(row) for row in data[0]]
        bounds = offsets.tolist()
        assert missing is None or fill == 2
        for first, count in [] if missing is None else missing.reshape(-1, 2).tolist():
            sample, value = divmod(first, 1 if f.sparse else f.dim)
            sequence = int(np.searchsorted(offsets, sample, side="right")) - 1
            result.missing.append((sequence, number, sample - bounds[sequence], value, count))
        per_stream.append([items[a:b] for a, b in itertools.pairwise(bounds)])
    result.sequences = [[stream[i] for stream in per_stream] for i in range(n)]
    result.errors = [
        oracle.Error(CODES[e["code"]], *(int(e[k]) for k in ("stream", "byte", "expected", "got", "sequence")))
        for e in errors.view(ERROR)
    ]
    return result


def bits(sequences):
    """Numbers as bit patterns, so that -0, NaN and dtypes count."""

    def pattern(item):
        if isinstance(item, (list, tuple)):
            return [pattern(i) for i in item]
        if isinstance(item, int):
            return item
        return np.asarray(item).dtype.str, "nan" if item != item else np.asarray(item).tobytes().hex()

    return pattern(sequences)


def check(text, fields, allowed_errors=-1, size_stream=-1, skip_ids=False, lenient=False, fill=1):
    name = fields[size_stream].name if size_stream >= 0 else None
    try:
        entries, _ = oracle.index(text, name, skip_ids, lenient)
    except oracle.IndexFailure:
        assume(False)
    options = {"size_stream": size_stream, "lenient": lenient, "fill": fill, "allowed_errors": allowed_errors}
    got = native_parse(text, entries, fields, **options)
    expected = oracle.parse(text, entries, fields, **options)
    assert got.errors == expected.errors
    assert got.valid == expected.valid
    assert got.errors_left == expected.errors_left
    assert bits(got.sequences) == bits(expected.sequences)
    assert sorted(got.missing) == sorted(expected.missing)
    return got


@given(text=texts(tidy=True), lenient=st.booleans())
def test_tidy_texts_are_read_without_errors(text, lenient):
    got = check(text, FIELDS, lenient=lenient)
    assert got.errors == []
    assert all(got.valid)


@given(
    text=any_text,
    fields=st.sampled_from([FIELDS, SMALL, FIELDS[:1], FIELDS[2:], FIELDS[::-1]]),
    allowed_errors=st.sampled_from([-1, -1, 0, 1, 2, 3, 5, 100]),
    sized=st.booleans(),
    skip_ids=st.booleans(),
    lenient=st.booleans(),
    fill=st.sampled_from([0, 1, 2]),
)
@example(b"0 |A 1\n0 |B 0:1\n1 |D\n", SMALL, -1, False, False, False, 2)
@example(b"|x 1\n|A 1\n \n", SMALL, -1, False, False, True, 2)
@example(b"|A 1\n|A 2e", FIELDS[:1], -1, False, False, False, True)
@example(b"0 |A 1\n0 |A 1 2 3 4\n0 |A x", FIELDS[:1], 9, False, False, False, True)
@example(b"0 |A 1\n0 |A 1 2 3\n0 |A", FIELDS[:1], 9, False, False, False, False)
@example(b"1 |A 1\n5", FIELDS[:1], 9, False, False, False, True)
@settings(max_examples=examples(100))
def test_equals_oracle(text, fields, allowed_errors, sized, skip_ids, lenient, fill):
    check(text, fields, allowed_errors, 0 if sized else -1, skip_ids, lenient, fill)


@given(
    text=damaged(texts(fields=SMALL, tidy=True)),
    allowed_errors=st.sampled_from([-1, 0, 2, 4, 50]),
    fill=st.sampled_from([0, 1, 2]),
)
def test_damage_to_tidy_texts(text, allowed_errors, fill):
    check(text, SMALL, allowed_errors, fill=fill)


@given(
    text=texts(fields=SMALL),
    shifts=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 100), st.integers(0, 3)), max_size=4),
)
def test_wrong_index_is_harmless(text, shifts):
    """Any byte ranges inside the text are read as the oracle reads them."""
    entries = [Entry(0, min(o, len(text)), min(s, len(text) - min(o, len(text))), n) for o, s, n in shifts]
    got = native_parse(text, entries, SMALL)
    expected = oracle.parse(text, entries, SMALL)
    assert got.errors == expected.errors
    assert bits(got.sequences) == bits(expected.sequences)


@pytest.mark.parametrize("digits", [b"9" * n for n in (8, 9, 17, 18, 19, 20, 26)] + [b"9223372036854775807", b"0" * 30])
def test_indexes_of_any_length(digits):
    field = next(field for field in SMALL if field.sparse)
    text = b"|" + field.name + b" " + digits + b":1\n"
    got, expected = (parse(text, [Entry(0, 0, len(text), 1)], [field]) for parse in (native_parse, oracle.parse))
    assert got.errors == expected.errors


def test_unfinished_sequences_are_not_mixed_up():
    """Sequences without a newline are read from a scratch copy, one after the other at one address."""
    text = b"|A 1.55 2.555|A 1.555 2.55"
    entries = [Entry(0, 0, 13, 1), Entry(0, 13, 13, 1), Entry(0, 0, 13, 1)]
    got = native_parse(text, entries, FIELDS[:1])
    assert bits(got.sequences) == bits(oracle.parse(text, entries, FIELDS[:1]).sequences)


# ------------------------------------------------------------------------------------------------ numbers


def read_numbers(literals, float64=False, lenient=False, pad=b"7"):
    text = b"".join(b"|A " + literal + b"\n" for literal in literals)
    buffer = np.frombuffer(pad * 64 + text + pad * 64, np.uint8)
    sizes = np.array([len(literal) + 4 for literal in literals], np.uint32)
    begin = np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64)])
    parser = make_parser([Field(b"A", 1, float64=float64)], lenient=lenient)
    streams, valid, *_ = parser.parse(buffer, 64, as_entries(begin, sizes), 0)
    assert valid is None
    return streams[0][0][:, 0]


def halfway_literals(random, count):
    """Decimals at, just above and just below the middle of neighbouring float32, written in full."""
    from fractions import Fraction

    out = []
    for _ in range(count):
        low = np.uint32(random.integers(1, 0x7F000000)).view(np.float32)
        middle = (Fraction(float(low)) + Fraction(float(np.nextafter(low, np.float32(np.inf))))) / 2
        digits = f"{float(middle):.{int(random.integers(1, 40))}e}"
        exact = str(middle.numerator * 10**150 // middle.denominator)  # the middle is finite within 150 places
        exact = exact.rjust(151, "0")
        plain = exact[:-150] + "." + exact[-150:]
        out += [digits, plain, plain + "1", plain[:-1] if plain[-1] == "0" else plain]
    return [literal.encode() for literal in out]


def test_float32_is_rounded_correctly():
    random = np.random.default_rng(7)
    literals = [repr(float(np.uint32(u).view(np.float32))).encode() for u in random.integers(0, 0x7F800000, 3000)]
    literals += [
        f"{x:.{d}f}".encode() for x, d in zip(random.normal(size=3000), random.integers(0, 17, 3000), strict=False)
    ]
    literals += [
        f"{x:.{d}e}".encode() for x, d in zip(random.normal(size=1000), random.integers(1, 20, 1000), strict=False)
    ]
    literals += [str(i).encode() for i in random.integers(0, 2**63, 1000)]
    literals += [str(i).encode() for i in range(2**24 - 5, 2**24 + 9)]
    literals += halfway_literals(random, 300)
    literals += [
        b"9007199254740993",
        b"9007199254740992",
        b"9999999999999999",
        b"340282346638528859811704183484516925440",
    ]
    literals += [b"3.4028235677973366e38", b"3.4028235677973367e38", b"1e40", b"-1e39", b"7e-46", b"-7.1e-46", b"1e-44"]
    literals += [b"7.006492321624085e-46", b"7.0064923216240854e-46", b"7.00649232162408536e-46", b"1e-400", b"0e99999"]
    literals += [b"1e99999999999999999999", b"-1e-99999999999999999999", b"0" * 400 + b"1", b"1" + b"0" * 400]
    literals += [b"0." + b"0" * 400 + b"1", b"0." + b"0" * 30 + b"1e30", b"1" + b"0" * 60 + b"e-60", b"-0", b"-0.0"]
    # The double nearest to this is exactly between two floats, but the decimal is not.
    literals += [b"1.00000017881393432617187499", b"1.00000017881393432617187501", b"1.000000178813934326171875"]
    got = read_numbers(literals)
    expected = np.array([oracle.round_to_float32(literal) for literal in literals])
    wrong = np.flatnonzero(got.view(np.uint32) != expected.view(np.uint32))
    assert not len(wrong), [(literals[i], got[i], expected[i]) for i in wrong[:5]]


def test_float64_is_rounded_correctly():
    random = np.random.default_rng(8)
    literals = [repr(float(u.view(np.float64))).encode() for u in random.integers(0, 0x7FF0 << 48, 2000)]
    literals += [
        f"{x:.{d}f}".encode() for x, d in zip(random.normal(size=3000), random.integers(0, 25, 3000), strict=False)
    ]
    literals += [str(i).encode() for i in random.integers(0, 2**63, 1000)]
    literals += [
        b"9007199254740993",
        b"1e400",
        b"-1e400",
        b"3e-324",
        b"2e-324",
        b"2.47032822920623272e-324",
        b"1e22",
        b"1e23",
    ]
    got = read_numbers(literals, float64=True)
    expected = np.array([float(literal) for literal in literals])
    wrong = np.flatnonzero(got.view(np.uint64) != expected.view(np.uint64))
    assert not len(wrong), [(literals[i], got[i], expected[i]) for i in wrong[:5]]


@given(st.lists(st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False)), min_size=1))
def test_repr_comes_back_exactly(values):
    literals = [repr(v).encode() for v in values]
    assert read_numbers(literals).tolist() == values
    assert read_numbers(literals, float64=True).tolist() == values


def test_lenient_numbers():
    got = read_numbers([b".5", b"-.5e1", b"5.e3", b"nan", b"-NaN", b"inf", b"-Inf", b"+inf"], lenient=True)
    np.testing.assert_array_equal(got, np.float32([0.5, -5, 5000, np.nan, np.nan, np.inf, -np.inf, np.inf]))


# ------------------------------------------------------------------------------------------------ the rest


def test_runs_of_zeros_of_every_length():
    for dim in (1, 7, 8, 9, 16, 40):
        fields = [Field(b"A", dim)]
        rows = [b"|A " + b" ".join([b"0"] * k + [b"5"] + [b"0"] * (dim - k - 1)) + b"\n" for k in range(dim)]
        rows += [b"|A" + b" 0" * k + b"\n" for k in range(dim + 1)] + [b"|A " + b"0 " * (dim + 1) + b"\n"]
        got = check(b"".join(rows), fields)
        assert got.valid == [True] * (len(rows) - 1) + [False]
        got = check(b"".join(rows), fields, fill=0)
        assert got.valid == [True] * dim + [False] * dim + [True, False]


def test_memory_limit_is_an_error_with_both_figures():
    text = b"".join(b"|A 1 2 3 |sparse_one 1:1 2:2\n" for _ in range(10))
    fields = [FIELDS[0], FIELDS[2]]
    entries, _ = oracle.index(text)
    index = as_index(entries)
    buffer = np.frombuffer(bytes(64) + text + bytes(64), np.uint8)
    offsets = 2 * 11 * 8
    per_row = 12 + 8 + 2 * 8
    for rows in range(10):
        limit = offsets + rows * per_row + 20
        streams, valid, errors, _ = make_parser(fields, memory_limit=limit).parse(buffer, 64, index, 0)
        assert valid.tolist() == [1] * rows + [0] * (10 - rows)
        (error,) = errors.view(ERROR)
        assert CODES[error["code"]] == "memory_limit"
        assert error["expected"] == limit
        assert limit < error["got"] <= offsets + (rows + 1) * per_row
        assert error["sequence"] == rows
        assert streams[0][0].shape == (rows, 3)
        assert sum(a.nbytes for s in streams for a in s[:-1]) <= limit
    _, valid, errors, _ = make_parser(fields, memory_limit=offsets + 10 * per_row).parse(buffer, 64, index, 0)
    assert valid is None
    assert len(errors) == 0


def test_bytes_of_errors_count_from_the_file():
    buffer = np.frombuffer(bytes(64) + b"|A x\n" + bytes(64), np.uint8)
    *_, errors, _ = make_parser(FIELDS[:1]).parse(buffer, 64, as_entries([10**12], [5]), 10**12)
    assert errors.view(ERROR)["byte"].tolist() == [10**12 + 3]


def test_arguments_are_checked():
    parser = make_parser(FIELDS[:1])
    buffer = np.zeros(200, np.uint8)
    parser.parse(buffer, 64, as_entries([7], [72]), 7)
    for start, begin, size in [(63, 0, 1), (64, 0, 73), (64, -1, 1), (64, 73, 0), (137, 0, 0), (64, 2**62, 1)]:
        with pytest.raises(ValueError, match=r"outside|readable"):
            parser.parse(buffer, start, as_entries([7 + begin], [size]), 7)
    with pytest.raises(ValueError, match="24 bytes"):
        parser.parse(buffer, 64, np.zeros(23, np.uint8), 0)
    with pytest.raises(ValueError, match="aligned"):
        parser.parse(buffer, 64, np.zeros(25, np.uint8)[1:], 0)
    with pytest.raises(ValueError, match="distinct fields"):
        make_parser([FIELDS[0], FIELDS[0]])
    with pytest.raises(ValueError, match="dimension"):
        make_parser([Field(b"A", 0)])
    with pytest.raises(ValueError, match="dimension"):
        make_parser([Field(b"A", 2**31, sparse=True)])
    with pytest.raises(ValueError, match="size_stream"):
        make_parser(FIELDS, size_stream=len(FIELDS))


def test_two_threads_share_a_parser():
    from concurrent.futures import ThreadPoolExecutor

    text = b"".join(b"|A %d 2 3\n" % i for i in range(20000))
    entries, _ = oracle.index(text)
    index = as_index(entries)
    parser = make_parser(FIELDS[:1])
    buffer = np.frombuffer(bytes(64) + text + bytes(64), np.uint8)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: parser.parse(buffer, 64, index, 0)[0][0][0], range(16)))
    for rows in results:
        np.testing.assert_array_equal(rows[:, 0], np.arange(20000))


@pytest.mark.skipif("FEEDLINE_SIMD" in os.environ, reason="is the subprocess itself")
def test_portable_variant_passes_all_of_this():
    here = Path(__file__)
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(here),
            str(here.with_name("test_ctf_index.py")),
        ],
        env={**os.environ, "FEEDLINE_SIMD": "portable", "FEEDLINE_EFFORT": str(EFFORT / 3)},
        cwd=here.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]
