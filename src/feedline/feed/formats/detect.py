"""Recognise the formats of files and folders, mostly by their first bytes.

`FORMATS` has one entry per format, with the rules that recognise it, and the function that opens it, which is imported
when it is needed. To add a format, add an entry. Formats of other packages get the files that no entry recognises.
`_FOREIGN` names files that no format reads, with the next step.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from feedline.errors import DataError
from feedline.feed.files.compressed_text import head_of, packing_of
from feedline.feed.files.paths import list_files, list_places, looking, open_regular
from feedline.feed.formats.arrow.file import FILE_MAGIC, STREAM_MAGIC
from feedline.feed.formats.arrow.hugging_face import is_arrow_dataset
from feedline.feed.formats.cntk.cbf import HEAD as CBF_HEAD
from feedline.feed.formats.format import Format, installed_formats
from feedline.feed.formats.image_guess import is_base64, is_image_folder, is_map
from feedline.feed.formats.shards_guess import INDEX, is_litdata, is_mds
from feedline.feed.formats.store.manifest import MANIFEST
from feedline.feed.formats.stored.zarr_store import is_zarr, is_zarr_zip
from feedline.feed.formats.tfrecord_guess import is_tfrecord

_HEAD_BYTES = 512  # first bytes of a file that are read
_MAX_SUBFOLDERS = 8  # folders in a folder
_MAX_HEADER = 100 << 20  # bytes of JSON in a file of safetensors
_SURE = 4  # bytes of a magic number that tokens do not begin with by chance
_log = logging.getLogger("feedline")
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")


def _magic(*magics: bytes) -> Callable[[Path, bytes], bool]:
    return lambda path, head: head.startswith(magics)


def _is_npz(path: Path, head: bytes) -> bool:
    if not head.startswith(_ZIP):
        return False
    return path.suffix.lower() == ".npz" or any(name.endswith(".npy") for name in _names_in_zip(path))


def _is_arrow(path: Path, head: bytes) -> bool:
    if head.startswith(FILE_MAGIC):
        return True
    # A stream begins with its schema: marker, size of the metadata, offset of its root. Tokens may look like a marker.
    length, root = (int.from_bytes(head[at : at + 4], "little") for at in (4, 8))
    return head.startswith(STREAM_MAGIC) and length % 8 == root % 4 == 0 and 4 <= root < length < 1 << 26


def _is_ctf(path: Path, head: bytes) -> bool:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return re.match(rb"(\d+\s*)?\|[!-{}~][!-~]*\s", text) is not None and b"\0" not in text


def _is_tokens(path: Path, head: bytes) -> bool:
    if head.startswith(b"MMIDIDX\0\0"):
        return True
    if path.suffix != ".bin":
        return False
    # Numbers without a header may begin with any bytes: these are the first token of a text.
    magics = tuple(magic for magic, _, _ in _FOREIGN if len(magic) >= _SURE)
    return path.with_suffix(".idx").is_file() or not head.startswith((*_ZIP, *magics))


_DESCRIPTIONS = (".yaml", ".yml")
_JSON_LINES = (".jsonl", ".ndjson")


def _is_json_lines(path: Path, head: bytes) -> bool:
    """Whether the first line is an object, or begins one in a file with the suffix of JSON Lines.

    A JSON document has its object on several lines.
    """
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text.startswith(b"{"):
        return False
    if path.suffix.lower() in _JSON_LINES:
        return True
    line, newline, _ = text.partition(b"\n")
    if not newline:
        return line[1:].lstrip()[:1] in (b'"', b"}")
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


_HERE = "feedline.feed.formats."
_NUMPY = f"{_HERE}numpy_files:open_files"
FORMATS: tuple[Format, ...] = (
    Format("store", "a store", f"{_HERE}store.reader:open_files", folder=lambda path: (path / MANIFEST).is_file()),
    Format(
        "zarr",
        "a Zarr store",
        f"{_HERE}stored.zarr:ZarrDeserializer",
        begins=lambda path, head: head.startswith(_ZIP) and is_zarr_zip(_names_in_zip(path)),
        folder=is_zarr,  # before the formats that look below the folder, as it may have a million files
        several=True,
    ),
    Format("image folder", "a folder of classes", f"{_HERE}images:ImageFolderDeserializer", folder=is_image_folder),
    Format("image map", "an image map", f"{_HERE}images:open_map", begins=is_map, lists=f"{_HERE}images:listed_in_map"),
    Format("base64 images", "a base64 file", f"{_HERE}images:Base64ImageDeserializer", begins=is_base64),
    Format(
        "mixture",
        "a mixture's description",
        "feedline.feed.composed.mixture_file:open_files",
        begins=lambda path, head: (
            path.suffix.lower() in _DESCRIPTIONS or (path.suffix.lower() == ".json" and b'"mixture"' in head)
        ),
        suffixes=_DESCRIPTIONS,
    ),
    Format(
        "mds",
        "a folder of MDS shards",
        f"{_HERE}shards.mds:MDSDeserializer",
        folder=is_mds,
        begins=lambda path, head: path.name == INDEX and is_mds(path.parent),
        several=True,
    ),
    Format(
        "litdata",
        "a folder of LitData",
        f"{_HERE}litdata:LitDataDeserializer",
        folder=is_litdata,
        begins=lambda path, head: path.name == INDEX and is_litdata(path.parent),
        several=True,
    ),
    Format(
        "arrow",
        "an Arrow file",
        f"{_HERE}arrow.arrow:ArrowDeserializer",
        begins=_is_arrow,
        folder=is_arrow_dataset,
        inside="*.arrow",
        several=True,
        loose=True,
        suffixes=(".arrow", ".arrows", ".feather"),
    ),
    Format(
        "parquet",
        "a Parquet file",
        f"{_HERE}arrow.parquet:ParquetDeserializer",
        begins=_magic(b"PAR1", b"PARE"),
        inside="*.parquet",
        several=True,
        loose=True,
        suffixes=(".parquet", ".pq"),
    ),
    Format("npy folder", "a folder of .npy files", _NUMPY, folder=lambda path: any(path.glob("*.npy")), loose=True),
    Format("npy", "a NumPy file", _NUMPY, begins=_magic(b"\x93NUMPY"), suffixes=(".npy",)),
    Format("npz", "a NumPy file", _NUMPY, begins=_is_npz, suffixes=(".npz",)),
    Format("ctf", "a CTF file", f"{_HERE}cntk.ctf:open_files", begins=_is_ctf, several=True, suffixes=(".ctf", ".txt")),
    Format(
        "hdf5",
        "an HDF5 file",
        f"{_HERE}stored.hdf5:HDF5Deserializer",
        begins=_magic(b"\x89HDF\r\n\x1a\n", b"MATLAB 7.3 MAT-file"),
        several=True,
        suffixes=(".h5", ".hdf5"),
    ),
    Format("csv", "a CSV file", f"{_HERE}csv:CSVDeserializer", several=True, suffixes=(".csv", ".tsv"), packed=True),
    Format(
        "jsonl",
        "a JSON Lines file",
        f"{_HERE}jsonl:JSONLinesDeserializer",
        begins=_is_json_lines,
        several=True,
        suffixes=_JSON_LINES,
        packed=True,
    ),
    Format(
        "cbf", "a CBF file", f"{_HERE}cntk.cbf:open_files", begins=_magic(CBF_HEAD), several=True, suffixes=(".cbf",)
    ),
    Format(
        "htk",
        "an HTK script file",
        f"{_HERE}cntk.htk:HTKFeatureDeserializer",
        suffixes=(".scp",),
        lists=f"{_HERE}cntk.htk:listed_in_script",
    ),
    Format(
        "mlf", "an MLF file", f"{_HERE}cntk.mlf:open_files", begins=_magic(b"#!MLF!#"), several=True, suffixes=(".mlf",)
    ),
    Format(
        "tar",
        "a tar archive",
        f"{_HERE}tar:TarDeserializer",
        begins=lambda path, head: head[257:262] == b"ustar",
        folder=lambda path: any(path.glob("*.tar")),
        several=True,
        loose=True,
        suffixes=(".tar",),
    ),
    Format(
        "tfrecord",
        "a TFRecord file",
        f"{_HERE}tfrecord:TFRecordDeserializer",
        begins=is_tfrecord,
        several=True,
        suffixes=(".tfrecord", ".tfrecords"),
        packed=True,
    ),
    Format(
        "tokens", "a file of tokens", f"{_HERE}tokens:open_files", begins=_is_tokens, several=True, suffixes=(".bin",)
    ),
)
SUFFIXES = {suffix: form for form in FORMATS for suffix in form.suffixes}
_UNMISTAKABLE = SUFFIXES.keys() - {".txt", ".bin"}  # other files have these, too

# Files that are known and not read: first bytes, description, and advice.
_PACKED = (".gz", ".zst", ".zstd")
_DECOMPRESS = "decompress it first, or read it in an fl.UserDeserializer"
_STEP = "read it in an fl.UserDeserializer (docs/how-to/own-format.md), or convert it with the library that wrote it"
_DECODE = "pass its bytes in a stream of dtype 'bytes' and decode them in an fl.Map (docs/how-to/bytes-and-text.md)"
_LINES = "write one object per line (JSON Lines): `jq -c '.[]'` does so with the items of a list"
_UNPICKLE = "feedline never unpickles data; load it and pass arrays"
_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "gzip", _DECOMPRESS),
    (b"\x28\xb5\x2f\xfd", "Zstandard", _DECOMPRESS),
    (b"BZh", "bzip2", _DECOMPRESS),
    (b"\xfd7zXZ\0", "xz", _DECOMPRESS),
    (b"\x04\x22\x4d\x18", "LZ4", _DECOMPRESS),
    (b"FEA1", "a Feather file (version 1)", "write it as Parquet"),
    (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9", "a PyTorch checkpoint", "load it with torch.load, and pass tensors"),
    (b"\x80\x02", "a Python pickle", _UNPICKLE),
    (b"\x80\x04", "a Python pickle", _UNPICKLE),
    (b"\x80\x05", "a Python pickle", _UNPICKLE),
    (b"SQLite format 3\0", "an SQLite database", _STEP),
    (b"\x0a\x23\xd7\xce", "a RecordIO file of MXNet's", _STEP),
    (b"\xff\xd8\xff", "a JPEG picture", _DECODE),
    (b"\x89PNG\r\n", "a PNG picture", _DECODE),
    (b"RIFF", "a RIFF file (WAV, WebP or AVI)", _DECODE),
    (b"fLaC", "a FLAC file", _DECODE),
    (b"OggS", "an Ogg file", _DECODE),
    (b"{", "a JSON document", _LINES),
)


class Recognised(NamedTuple):
    """Files of one format, in corpus order, or one folder."""

    format: Format
    paths: list[str]


def recognise(what: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Recognised:
    """Return the format of a path, a folder, a pattern, or a list of these.

    Raises:
        DataError: nothing is there, its format is unknown or not read, or files are of several formats.
        FeedlineError: see `installed_formats`.
        TypeError: ``what`` is none of these.
        ValueError: the list is empty.
    """
    if not isinstance(what, (str, os.PathLike)):
        if not isinstance(what, (list, tuple)):
            raise TypeError(f"expected a path, a pattern or a list of these, got {type(what).__name__}")
        parts = [recognise(entry) for entry in what]
        if not parts:
            raise ValueError("expected at least one path, got an empty list")
        return _together(parts)
    place = Path(what)
    if re.match(r"[a-z][a-z0-9+.-]+://", str(what)):
        raise DataError("expected a local path, got an address", path=str(what), hint="download it, or mount it")
    with looking(place):
        if place.is_dir():
            return _folder(place)
        if place.exists():
            return Recognised(_of_file(place), [str(place)])
    places = list_places(what)
    if places == [place]:
        return Recognised(_of_file(place), [str(place)])
    return _together([recognise(entry) for entry in places])


def guess_format(path: str | os.PathLike[str]) -> str:
    """Return the name of the format of a file or folder. See `recognise`."""
    return recognise(path).format.name


def _together(parts: list[Recognised]) -> Recognised:
    first = parts[0]
    for part in parts[1:]:
        if part.format is not first.format:
            raise DataError(
                f"expected files of one format, got {first.format.description} ({first.paths[0]}) and "
                f"{part.format.description}",
                path=part.paths[0],
                hint="open them separately; fl.Join joins corpora by key",
            )
    return Recognised(first.format, [path for part in parts for path in part.paths])


def _folder(place: Path) -> Recognised:
    with looking(place):
        form = next((form for form in FORMATS if _is_whole(form, place)), None)
        form = form or _only_one([form for form in _installed() if _is_whole(form, place)], place)
        if form is not None:
            if form.loose:
                _tell_others(place, form)
            return Recognised(form, [str(place)])
    try:
        files = list_files(place)
    except DataError:
        files = []
    if not files:
        raise DataError(
            f"expected a folder with {MANIFEST}, *.arrow, *.parquet, *.npy or files that can be recognised, got none",
            path=str(place),
            hint=_within(place)
            or "name the files, or use a format's own deserializer, e.g. fl.CTFDeserializer(path, ...)",
        )
    return _together([Recognised(_of_file(file), [str(file)]) for file in files])


def _is_whole(form: Format, place: Path) -> bool:
    """Whether a whole folder is of a format."""
    return form.folder(place) or (form.inside is not None and next(place.rglob(form.inside), None) is not None)


def _installed() -> tuple[Format, ...]:
    """Return the formats of other packages. Looking them up takes 10 ms and more, so built-in formats come first."""
    return installed_formats(FORMATS, tuple(sys.path))


def _only_one(forms: list[Format], place: Path) -> Format | None:
    """Return the format of another package that recognises a place; None: there is none.

    Raises:
        DataError: several formats recognise it.
    """
    if len(forms) > 1:
        names = " and ".join(f"`{form.name}`" for form in forms)
        raise DataError(
            f"expected one format that recognises this, got {names}",
            path=str(place),
            hint="use the deserializer of one of them",
        )
    return forms[0] if forms else None


def _within(place: Path) -> str | None:
    """Return a hint for a folder whose subfolders can be opened, such as train and val; None: none can."""
    try:
        folders = sorted(folder for folder in place.iterdir() if folder.is_dir())[:_MAX_SUBFOLDERS]
        openable = [folder.name for folder in folders if any(form.folder(folder) for form in (*FORMATS, *_installed()))]
    except OSError:
        return None
    return f"name a folder in it, or a list of them: {', '.join(openable)}" if openable else None


@functools.cache
def _tell_others(place: Path, form: Format) -> None:
    """Warn, once, of files directly in a folder that are not read because other files there are of ``form``."""
    suffixes = {".npy"} if form.name == "npy folder" else set(form.suffixes)
    skipped = sorted(file.name for file in place.iterdir() if file.suffix.lower() in _UNMISTAKABLE - suffixes)
    if skipped:
        _log.warning(
            "%s: only its %s files are read, not %s%s; name a pattern to read others",
            place,
            "/".join(sorted(suffixes)),
            skipped[0],
            f" and {len(skipped) - 1} more" if len(skipped) > 1 else "",
        )


def _of_file(place: Path) -> Format:
    with looking(place), open_regular(place) as file:
        head = file.read(_HEAD_BYTES)
        unpacked = head_of(file, _HEAD_BYTES) if packing_of(head) else None
    within = place.with_suffix("") if place.suffix.lower() in _PACKED else place

    def holds(form: Format) -> bool:
        """Whether the file is packed, and its content is of a format."""
        if unpacked is None or not form.packed:
            return False
        return form.begins(within, unpacked) or within.suffix.lower() in form.suffixes

    for form in FORMATS:
        if holds(form):
            return form
    for form in FORMATS:
        if form.begins(place, head):
            return form
    suffix = place.suffix.lower()
    foreign = _foreign(place, head)
    if foreign is None and suffix in SUFFIXES:
        return SUFFIXES[suffix]
    forms = [form for form in _installed() if holds(form) or form.begins(place, head) or suffix in form.suffixes]
    if (added := _only_one(forms, place)) is not None:
        return added
    raise foreign or _unknown(place, head)


def _foreign(place: Path, head: bytes) -> DataError | None:
    """Return the error for a file that is known by its first bytes and not read; None: it is not known."""
    for magic, what, hint in _FOREIGN:
        if head.startswith(magic):
            return _not_read(place, what, hint)
    if not head.startswith(_ZIP):
        return None
    if any(name.endswith("data.pkl") for name in _names_in_zip(place)):
        return _not_read(place, "a PyTorch checkpoint", "load it with torch.load, and pass tensors")
    return _not_read(place, "a zip archive", "extract it first")


def _unknown(place: Path, head: bytes) -> DataError:
    """Return the error for a file that no format recognises by its first bytes or its suffix."""
    if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < _MAX_HEADER:  # the length of JSON, then the JSON
        return _not_read(place, "a file of safetensors", "load it with safetensors.numpy.load_file, and pass arrays")
    if head.lstrip().startswith(b"["):
        return _not_read(place, "a JSON list", _LINES)
    if place.suffix.lower() == ".mds":
        return _not_read(
            place, "a shard of MDS", f"pass its folder; the {INDEX} there is missing or damaged: restore it"
        )
    if not head:
        return DataError("expected a file of a known format, got an empty one", path=str(place), hint="write it again")
    return DataError(
        f"expected a store or a file of a known format, got one that begins with {head[:8]!r}",
        path=str(place),
        hint=f"known suffixes: {', '.join(SUFFIXES)}; or use the format's own deserializer",
    )


def _not_read(place: Path, what: str, hint: str) -> DataError:
    return DataError(f"expected a file that feedline reads, got {what}", path=str(place), hint=hint)


def _names_in_zip(path: Path) -> list[str]:
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return []
