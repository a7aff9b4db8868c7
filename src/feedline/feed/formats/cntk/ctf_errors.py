"""Turn the error records of the native CTF kernels into `DataError` objects.

Line numbers are only counted here, when there is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from feedline import _native
from feedline.errors import DataError
from feedline.feed.files.paths import read_at
from feedline.feed.formats.indexed.indexed_corpus import Ordinals, line_of

RECORD = np.dtype(
    [("byte", "<u8"), ("expected", "<i8"), ("got", "<i8"), ("sequence", "<u4"), ("stream", "<i2"), ("code", "<u2")]
)
NAMES = {code: name for name, code in _native.CTF_ERRORS.items()}
FATAL = {"memory_limit", "errors_exhausted"}

_SKIP = 'pass on_error="skip" to the source to skip such sequences and count them'
_KIND = "compare the declaration (sparse=True for `index:value` pairs) with the file"
_SHAPE = "if the data is right, declare a larger shape"
_FILL = "fill_missing=True pads such samples with zeros, as CNTK does; or declare the shape that the file has"
_SHOWN_BYTES = 1 << 10  # of a row that are searched for field names
_FIELD = re.compile(rb"\|(?!#)([!-{}~]+)")

# {s}: stream, {e} and {g}: expected and got, {c}: the byte found
_MESSAGES = {
    "unexpected_byte": ("expected `|` before a stream name, got {c}", None),
    "bad_name": ("expected a stream name after `|`, got {c}", None),
    "empty_row": ("expected at least one sample of the declared streams in a row, got none", None),
    "too_many_values": ("expected at most {e} values for stream `{s}`, got {g}", _SHAPE),
    "too_few_values": ("expected {e} values for stream `{s}`, got {g}", _FILL),
    "bad_number": ("expected a number for stream `{s}`, got {c}", None),
    "bad_index": ("expected a sparse index for stream `{s}`, got {c}", _KIND),
    "index_too_large": ("expected a sparse index below {e} for stream `{s}`, got {g}", _SHAPE),
    "no_colon": ("expected `:` after a sparse index of stream `{s}`, got {c}", _KIND),
    "missing_stream": ("expected at least one sample for stream `{s}`, got none in the whole sequence", None),
    "too_many_samples": ("expected at most one sample per row for stream `{s}`, {e} in total, got {g}", None),
    "too_few_samples": ("expected a stream with a sample in each of {e} rows, got {g} in the longest", None),
    "size_mismatch": ("expected {e} samples for stream `{s}`, which defines the size, got {g}", None),
}
_INDEX_MESSAGES = {
    "empty_input": ("expected rows of text, got none", None),
    "utf16_input": ("expected UTF-8 text, got a UTF-16 byte order mark", "convert it: iconv -f UTF-16 -t UTF-8"),
    "no_sequence_id": (
        "expected a sequence id (digits) or `|` at the start of the first row, got {c}",
        "ids are unsigned integers; is this a CTF file?",
    ),
    "id_overflow": ("expected a sequence id of at most 64 bits, got a larger one", None),
    "sequence_too_long": ("expected sequences of at most 4294967295 bytes, got a longer one", None),
}


def show_byte(byte: int) -> str:
    """Return the name of a byte for an error message."""
    if byte == 0x0A:
        return "the end of the row"
    return f"`{chr(byte)}`" if 0x20 <= byte < 0x7F else f"byte 0x{byte:02x}"


def describe_index_error(path: Path, file: BinaryIO, code: int, byte: int) -> DataError:
    """Return the error for a text that cannot be indexed."""
    what, hint = _INDEX_MESSAGES[NAMES[code]]
    at = read_at(file, 1, byte)
    what = what.format(c=show_byte(at[0]) if at else "the end of the file")
    return DataError(what, path=str(path), byte=byte, line=line_of(file, byte), hint=hint)


def describe(
    path: Path,
    file: BinaryIO,
    record: Any,
    *,
    streams: Sequence[str],
    lenient: bool,
    ordinals: Ordinals,
    near: tuple[int, int],
) -> DataError:
    """Return the error that a `RECORD` describes.

    Args:
        path: path of the text.
        file: the open text.
        record: a record without a `FATAL` code.
        streams: names, by stream number in the record.
        lenient: whether the lenient grammar was used, for the advice.
        ordinals: ordinals in the corpus, by sequence number in the record.
        near: an offset before the record and its line number.
    """
    name, byte = NAMES[int(record["code"])], int(record["byte"])
    stream = streams[record["stream"]] if record["stream"] >= 0 else None
    sentence, hint = _MESSAGES[name]
    expected, got = int(record["expected"]), int(record["got"])
    advice = [hint] if hint else []
    if name == "bad_number" and got == ord(":"):
        advice.append(_KIND)
    row = read_at(file, _SHOWN_BYTES, byte).split(b"\n")[0] if name == "empty_row" else b""
    if fields := [field.decode() for field in dict.fromkeys(_FIELD.findall(row))]:
        advice.append(
            f"the row has {', '.join(f'`{field}`' for field in fields)}; declare streams so that every row has "
            "one of them (field= is the name in the file)"
        )
    if not lenient:
        if name == "empty_row" and not row.strip():
            advice.append("lenient=True skips blank lines")
        if name == "bad_number" and chr(got) in ".eEnNiI":
            advice.append("lenient=True accepts .5, 5.e3, nan and inf")
    return DataError(
        sentence.format(s=stream, e=expected, g=got, c=show_byte(got) if 0 <= got < 256 else got),
        path=str(path),
        byte=byte,
        line=line_of(file, byte, near),
        sequence=int(ordinals[record["sequence"]]),
        stream=stream,
        hint="; ".join([*advice, _SKIP]),
    )
