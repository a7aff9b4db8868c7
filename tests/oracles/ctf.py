"""CNTK text format, read slowly and obviously: the twin of the native indexer and parser.

`index` finds sequences, `parse` reads them. Both work on whole texts, with regular expressions and Python
lists, and round numbers with exact fractions.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

BLANKS = b" \t"
SPACES = b" \t\n\v\f\r"
DIGITS = b"0123456789"
MAX_U64 = 2**64 - 1


class IndexFailure(Exception):
    """The text cannot be indexed. `code` is a key of CTF_ERRORS."""

    def __init__(self, code: str, byte: int, entries: list[Entry]) -> None:
        super().__init__(code, byte)
        self.code, self.byte, self.entries = code, byte, entries


@dataclass(frozen=True)
class Entry:
    key: int
    offset: int
    size: int
    samples: int


@dataclass(frozen=True)
class Field:
    name: bytes
    dim: int
    sparse: bool = False
    float64: bool = False


@dataclass(frozen=True)
class Error:
    code: str
    stream: int
    byte: int
    expected: int
    got: int
    sequence: int


@dataclass
class Parsed:
    """Lists of samples by sequence and stream. A sample is a list of values or of (index, value) pairs."""

    sequences: list[list[list[list]]] = field(default_factory=list)
    # Of an optional field: (sequence, stream, sample in it, first missing value, number of missing ones), a sparse
    # sample as one value.
    missing: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    valid: list[bool] = field(default_factory=list)
    errors: list[Error] = field(default_factory=list)
    errors_left: int = -1


# ---------------------------------------------------------------------------------------------- bytes


def ends_token(byte: int) -> bool:
    return byte <= 0x20 or byte >= 0x80 or byte == ord("|")


def ends_sample(byte: int) -> bool:
    return ends_token(byte) and byte not in BLANKS


# ---------------------------------------------------------------------------------------------- index


def index(
    text: bytes, size_stream: bytes | None = None, skip_ids: bool = False, lenient: bool = False
) -> tuple[list[Entry], bool]:
    """Entries, and whether the file has ids. Raises IndexFailure."""
    entries: list[Entry] = []
    if text[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise IndexFailure("utf16_input", 0, entries)
    at = 3 if text[:3] == b"\xef\xbb\xbf" else 0
    while at < len(text) and text[at] in SPACES:
        at += 1
    if at == len(text):
        raise IndexFailure("empty_input", 0, entries)
    has_ids = not skip_ids and text[at] != ord("|")

    def counts(line: bytes) -> bool:
        if lenient and all(byte <= 0x20 for byte in line):
            return False
        if size_stream is None:
            return True
        line = line.removesuffix(b"\n")
        return any(
            rest.startswith(size_stream) and (rest == size_stream or ends_token(rest[len(size_stream)]))
            for rest in line.split(b"|")[1:]
        )

    number = text.count(b"\n", 0, at)  # of the line
    current: Entry | None = None
    while at < len(text):
        stop = text.find(b"\n", at)
        stop = len(text) if stop < 0 else stop + 1
        line = text[at:stop]
        if not has_ids:
            if counts(line):
                entries.append(Entry(number, at, len(line), 1))
        else:
            digits = re.match(rb"[0-9]*", line).group()
            if digits and int(digits) > MAX_U64:
                raise IndexFailure("id_overflow", at, entries)
            if current is None and not digits:
                raise IndexFailure("no_sequence_id", at, entries)
            if current is None or (digits and int(digits) != current.key):
                if current is not None and current.samples > 0:
                    entries.append(current)
                current = Entry(int(digits), at, 0, 0)
            current = Entry(current.key, current.offset, current.size + len(line), current.samples + counts(line))
        at = stop
        number += 1
    if current is not None and current.samples > 0:
        entries.append(current)
    return entries, has_ids


# ---------------------------------------------------------------------------------------------- numbers

STRICT = re.compile(rb"[+-]?[0-9]+(\.[0-9]+([eE][+-]?[0-9]+)?|\.|[eE][+-]?[0-9]+)?")
LENIENT = re.compile(rb"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|(?i:nan|inf))")
# What can still become a number: the longest of it ends at the byte that does not fit.
STRICT_PREFIX = re.compile(rb"[+-]?([0-9]+(\.([0-9]+([eE][+-]?[0-9]*)?)?|[eE][+-]?[0-9]*)?)?")
LENIENT_PREFIX = re.compile(rb"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]*)?|(?i:nan|inf))?")


def read_number(text: bytes, at: int, lenient: bool) -> tuple[bytes | None, int]:
    """Return (text, first byte after it), or (None, first byte that does not fit)."""
    end = (LENIENT_PREFIX if lenient else STRICT_PREFIX).match(text, at).end()
    whole = (LENIENT if lenient else STRICT).fullmatch(text, at, end)
    if whole and ends_token(text[end]):
        return whole.group(), end
    return None, end


def round_to_float64(text: bytes) -> float:
    return float(text)


def round_to_float32(text: bytes) -> np.float32:
    """Return the float32 nearest to the exact decimal, ties to even."""
    near = float(text)
    if near != near or near in (0.0, float("inf"), float("-inf")):
        return np.float32(near)
    exact = Fraction(text.decode())
    with np.errstate(over="ignore", under="ignore"):
        guess = np.float32(near)
        candidates = [guess, np.nextafter(guess, np.float32("inf")), np.nextafter(guess, np.float32("-inf"))]

    def distance(candidate: np.float32) -> tuple[Fraction, int]:
        value = Fraction(2) ** 128 if np.isinf(candidate) else Fraction(abs(float(candidate)))
        value = -value if np.signbit(candidate) else value
        return abs(value - exact), int(candidate.view(np.uint32)) & 1

    best = min(candidates, key=distance)
    return np.copysign(best, np.float32(math.copysign(1, near)))


# ---------------------------------------------------------------------------------------------- parse


class Stop(Exception):
    """Ends a sequence (strict), or everything (counting)."""


def parse(
    text: bytes,
    entries: list[Entry],
    fields: list[Field],
    *,
    size_stream: int = -1,
    lenient: bool = False,
    fill: int = 1,
    allowed_errors: int = -1,
) -> Parsed:
    """Read `entries` of `text`: strictly for -1, else counting errors as CNTK does.

    `fill`: 1 pads dense samples, 2 also fills streams that a sequence lacks.
    """
    result = Parsed(errors_left=allowed_errors)
    strict = allowed_errors < 0
    ended = False
    for number, entry in enumerate(entries):
        streams: list[list[list]] = [[] for _ in fields]
        good, missed = False, len(result.missing)
        if not ended:
            try:
                _sequence(text, entry, number, fields, size_stream, lenient, fill, result, streams)
                good = True
            except Stop:
                del result.missing[missed:]
                streams = [[] for _ in fields]
                ended = not strict
        result.sequences.append(streams)
        result.valid.append(good)
    return result


def _sequence(
    text: bytes,
    entry: Entry,
    number: int,
    fields: list[Field],
    size_stream: int,
    lenient: bool,
    fill: int,
    result: Parsed,
    streams: list[list[list]],
) -> None:
    strict = result.errors_left < 0

    def problem(code: str, stream: int, byte: int, expected: int, got: int) -> None:
        result.errors.append(Error(code, stream, byte, expected, got, number))
        if strict:
            raise Stop
        if result.errors_left == 0:
            result.errors.append(Error("errors_exhausted", stream, byte, 0, 0, number))
            raise Stop
        result.errors_left -= 1

    names = {f.name: s for s, f in enumerate(fields)}
    at, end = entry.offset, entry.offset + entry.size
    while at < end:
        stop = text.find(b"\n", at, end)
        newline = stop >= 0
        stop = stop if newline else end
        row = text[at:stop] + b"\n"
        sampled = False
        i = re.match(rb"[0-9]*", row).end()
        while row[i] != ord("\n"):
            if row[i] != ord("|"):
                if not ends_token(row[i]):
                    problem("unexpected_byte", -1, at + i, ord("|"), row[i])
                    i = re.compile(rb"[|\n]").search(row, i).start()
                else:
                    i += 1
                continue
            pipe = i
            i += 1
            name_end = i
            while not ends_token(row[name_end]):
                name_end += 1
            name = row[i:name_end]
            if name in names and not name.startswith(b"#"):
                stream = names[name]
                i, sample = _sample(row, name_end, at, pipe, stream, fields[stream], lenient, fill, problem)
                if sample is not None:
                    f = fields[stream]
                    if not f.sparse and len(sample) < f.dim:
                        if fill == 2:
                            missing = len(streams[stream]), len(sample), f.dim - len(sample)
                            result.missing.append((number, stream, *missing))
                        sample += [_zero(f)] * (f.dim - len(sample))
                    streams[stream].append(sample)
                    sampled = True
                    continue
            elif not name:
                problem("bad_name", -1, at + i, 0, row[i])
            i = re.compile(rb"[|\n]").search(row, i).start()
        blank = all(byte <= 0x20 for byte in row)
        accepted = lenient if blank else fill == 2 and strict
        if not sampled and not accepted and (strict or newline):
            problem("empty_row", -1, at, 1, 0)
        at = stop + newline

    for stream, f in enumerate(fields):
        if not streams[stream] and fill == 2 and strict:
            streams[stream].append([] if f.sparse else [_zero(f)] * f.dim)
            result.missing.append((number, stream, 0, 0, 1 if f.sparse else f.dim))
    lengths = [len(s) for s in streams]
    for stream, length in enumerate(lengths):
        if length == 0:
            result.errors.append(Error("missing_stream", stream, entry.offset, 1, 0, number))
            raise Stop
    if size_stream >= 0:
        if strict and lengths[size_stream] != entry.samples:
            problem("size_mismatch", size_stream, entry.offset, entry.samples, lengths[size_stream])
    elif max(lengths) > entry.samples:
        stream = next(s for s, n in enumerate(lengths) if n > entry.samples)
        problem("too_many_samples", stream, entry.offset, entry.samples, lengths[stream])
    elif max(lengths) < entry.samples:
        problem("too_few_samples", -1, entry.offset, entry.samples, max(lengths))


def _sample(row, i, base, pipe, stream, f: Field, lenient: bool, fill: int, problem) -> tuple[int, list | None]:
    """Return (where to continue, the sample or None). A dense sample that is filled lacks its last values."""
    convert = round_to_float64 if f.float64 else round_to_float32
    sample: list = []
    while True:
        while row[i] in BLANKS:
            i += 1
        if ends_sample(row[i]):
            break
        at = i
        if f.sparse:
            i = re.compile(rb"[0-9]*").match(row, i).end()
            if i == at:
                problem("bad_index", stream, base + i, 0, row[i])
                return i, None
            number = int(row[at:i])
            if number >= f.dim:
                # The record has 63 bits.
                got = min(number, 2**63 - 1)
                problem("index_too_large", stream, base + at, f.dim, got)
                return i, None
            if row[i] != ord(":"):
                problem("no_colon", stream, base + i, 0, row[i])
                return i, None
            i += 1
            if ends_token(row[i]):
                problem("bad_number", stream, base + i, 0, row[i])
                return i, None
        literal, i = read_number(row, i, lenient)
        if literal is None:
            problem("bad_number", stream, base + i, 0, row[i])
            return i, None
        sample.append((number, convert(literal)) if f.sparse else convert(literal))
    if not f.sparse:
        if len(sample) > f.dim:
            problem("too_many_values", stream, base + pipe, f.dim, len(sample))
            return i, None
        if len(sample) < f.dim and not fill:
            problem("too_few_values", stream, base + pipe, f.dim, len(sample))
            return i, None
    return i, sample


def _zero(f: Field):
    return (round_to_float64 if f.float64 else round_to_float32)(b"0")
