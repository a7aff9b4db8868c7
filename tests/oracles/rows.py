"""Slow twins of the parsers of rows: Python's json and csv modules, and the rules for types, one value at a time."""

from __future__ import annotations

import csv
import io
import json
import math
import re

import numpy as np

BAD = "bad"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class Twice(Exception):
    """An object has a key twice."""


def json_row(line, streams, ragged=()):
    """Return the values of a row by stream, or BAD. None where only the rules for skipped parts decide."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return None
    doubles = []

    def pairs(found):
        keys = [key for key, _ in found]
        doubles.extend(key for key in keys if keys.count(key) > 1)
        return dict(found)

    try:
        row = json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return BAD
    if not isinstance(row, dict):
        return BAD
    if doubles:
        return None
    values = {}
    for name, stream in streams.items():
        at = row
        for key in (stream.field or name).split("."):
            if not isinstance(at, dict) or key not in at:
                return BAD
            at = at[key]
        values[name] = _samples(at, stream) if name in ragged else _sample(at, stream, len(stream.shape))
        if values[name] is BAD:
            return BAD
    return values


def _samples(value, stream):
    if not isinstance(value, list):
        return BAD
    found = [_sample(one, stream, len(stream.shape)) for one in value]
    return BAD if any(one is BAD for one in found) else found


def _sample(value, stream, rank):
    if stream.is_text:
        if not isinstance(value, str) or any("\ud800" <= c <= "\udfff" for c in value):
            return BAD
        return value
    if rank:
        size = stream.shape[len(stream.shape) - rank]
        if not isinstance(value, list) or len(value) != size:
            return BAD
        found = [_sample(one, stream, rank - 1) for one in value]
        return BAD if any(one is BAD for one in found) else found
    return _number(value, stream.dtype)


def _number(value, dtype):
    if dtype.kind == "b":
        return value if isinstance(value, bool) else BAD
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return BAD
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return value if isinstance(value, int) and info.min <= value <= info.max else BAD
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def csv_rows(text, delimiter):
    """Return the cells of all rows that are not blank."""
    return [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]


def csv_cell(cell, dtype):
    """Return the value of a cell, or BAD."""
    if dtype.itemsize == 0:
        return cell
    cell = cell.strip(" \t")
    if dtype.kind == "b":
        return {"true": True, "1": True, "false": False, "0": False}.get(cell.lower(), BAD)
    if dtype.kind in "iu":
        if not re.fullmatch(r"[+-]?\d+", cell, re.ASCII):
            return BAD
        info = np.iinfo(dtype)
        return int(cell) if info.min <= int(cell) <= info.max else BAD
    if not _NUMBER.fullmatch(cell) and cell.lower().lstrip("+-") not in ("nan", "inf", "infinity"):
        return BAD
    try:
        return float(cell)
    except ValueError:
        return BAD
