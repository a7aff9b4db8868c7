"""Recognise the formats of files and folders, mostly by their first bytes.

`FORMATS` has one entry per format, with the rules that recognise it and the function that opens it, which is imported
when it is needed. To add a format, add an entry. Files that no entry recognises are offered to the formats of other
packages. `_FOREIGN` lists files that no format reads, each with advice.
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
from feedline.feed.files.paths import (
    COMPRESSED_SUFFIXES,
    INDEX_SUFFIX,
    TAR_SUFFIXES,
    PathLike,
    list_files,
    list_places,
    looking,
    open_regular,
)
from feedline.feed.files.remote import fetch_parts
from feedline.feed.formats.detect_shards import INDEX, is_litdata, is_mds
from feedline.feed.formats.format import Format, import_object, installed_formats
from feedline.feed.formats.magic_numbers import ARROW_FILE, ARROW_STREAM, CBF
from feedline.feed.formats.store.manifest import MANIFEST

_HEAD_BYTES = 512  # bytes that are read of the head of a file
_MAX_SUBFOLDERS = 8  # subfolders that are looked at for a hint
_MAX_HEADER = 100 << 20  # bytes of JSON at the head of a safetensors file
_MIN_MAGIC = 4  # length of a magic number with which tokens do not begin by chance
_log = logging.getLogger("feedline")
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")


def _begins_with(*magics: bytes) -> Callable[[Path, bytes], bool]:
    return lambda path, head: head.startswith(magics)


def _is_npz(path: Path, head: bytes) -> bool:
    if not head.startswith(_ZIP):
        return False
    return path.suffix.lower() == ".npz" or any(name.endswith(".npy") for name in _names_in_zip(path))


def _is_arrow(path: Path, head: bytes) -> bool:
    if head.startswith(ARROW_FILE):
        return True
    # A stream begins with its schema: marker, size of the metadata, offset of its root. Tokens may look like a marker.
    length, root = (int.from_bytes(head[at : at + 4], "little") for at in (4, 8))
    return head.startswith(ARROW_STREAM) and length % 8 == root % 4 == 0 and 4 <= root < length < 1 << 26


def _is_ctf(path: Path, head: bytes) -> bool:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return re.match(rb"(\d+\s*)?\|[!-{}~][!-~]*\s", text) is not None and b"\0" not in text


def _is_tokens(path: Path, head: bytes) -> bool:
    if head.startswith(b"MMIDIDX\0\0"):
        return True
    if path.suffix != ".bin":
        return False
    # Tokens without a header may begin with any bytes. A short magic number may be the first token of a text.
    magics = tuple(magic for magic, _, _ in _FOREIGN if len(magic) >= _MIN_MAGIC)
    return path.with_suffix(".idx").is_file() or not head.startswith((*_ZIP, *magics))


_DESCRIPTIONS = (".yaml", ".yml")
_JSON_LINES = (".jsonl", ".ndjson")


def _is_json_lines(path: Path, head: bytes) -> bool:
    """Return whether the first line is an object, or, in a file with the suffix of JSON Lines, begins one.

    The object of a JSON document is on several lines.
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


def _later(reference: str) -> Callable[..., bool]:
    """Return a function of this folder that is imported when it is called: most data are of an earlier format."""
    return lambda *arguments: bool(import_object(_HERE + reference)(*arguments))


FORMATS: tuple[Format, ...] = (
    Format(
        "store",
        "a store",
        f"{_HERE}store.store_reader:open_files",
        matches_folder=lambda path: (path / MANIFEST).is_file(),
    ),
    Format(
        "lerobot",
        "a robot dataset",
        f"{_HERE}lerobot.lerobot:LeRobotDeserializer",
        matches_folder=lambda path: (path / "meta" / "info.json").is_file() and (path / "data").is_dir(),
    ),
    Format(
        "zarr",
        "a Zarr store",
        f"{_HERE}hdf5_zarr.zarr:ZarrDeserializer",
        matches_file=lambda path, head: (
            head.startswith(_ZIP) and import_object(f"{_HERE}hdf5_zarr.zarr_store:is_zarr_zip")(_names_in_zip(path))
        ),
        matches_folder=_later(
            "hdf5_zarr.zarr_store:is_zarr"
        ),  # before the formats that search all subfolders, as a store may have a million files
        multiple_files=True,
    ),
    Format(
        "image folder",
        "a folder of classes",
        f"{_HERE}images:ImageFolderDeserializer",
        matches_folder=_later("detect_images:is_image_folder"),
    ),
    Format(
        "image map",
        "an image map",
        f"{_HERE}images:open_map",
        matches_file=_later("detect_images:is_map"),
        lister=f"{_HERE}images:files_in_map",
    ),
    Format(
        "base64 images",
        "a base64 file",
        f"{_HERE}images:Base64ImageDeserializer",
        matches_file=_later("detect_images:is_base64"),
    ),
    Format(
        "mixture",
        "a mixture's description",
        "feedline.feed.composed.mixture_file:open_files",
        matches_file=lambda path, head: (
            path.suffix.lower() in _DESCRIPTIONS or (path.suffix.lower() == ".json" and b'"mixture"' in head)
        ),
        suffixes=_DESCRIPTIONS,
    ),
    Format(
        "mds",
        "a folder of MDS shards",
        f"{_HERE}shards.mds:MDSDeserializer",
        matches_folder=is_mds,
        matches_file=lambda path, head: path.name == INDEX and is_mds(path.parent),
        multiple_files=True,
    ),
    Format(
        "litdata",
        "a folder of LitData",
        f"{_HERE}litdata:LitDataDeserializer",
        matches_folder=is_litdata,
        matches_file=lambda path, head: path.name == INDEX and is_litdata(path.parent),
        multiple_files=True,
    ),
    Format(
        "lance",
        "a Lance table",
        f"{_HERE}arrow.lance:LanceDeserializer",
        matches_folder=lambda path: any(path.glob("_versions/*.manifest")),
    ),
    Format(
        "arrow",
        "an Arrow file",
        f"{_HERE}arrow.arrow:ArrowDeserializer",
        matches_file=_is_arrow,
        matches_folder=_later("arrow.hugging_face:is_arrow_dataset"),
        folder_contains="*.arrow",
        multiple_files=True,
        ignores_other_files=True,
        suffixes=(".arrow", ".arrows", ".feather"),
        unites_schemas=True,
    ),
    Format(
        "parquet",
        "a Parquet file",
        f"{_HERE}arrow.parquet:ParquetDeserializer",
        matches_file=_begins_with(b"PAR1", b"PARE"),
        folder_contains="*.parquet",
        multiple_files=True,
        ignores_other_files=True,
        suffixes=(".parquet", ".pq"),
        unites_schemas=True,
    ),
    Format(
        "npy folder",
        "a folder of .npy files",
        _NUMPY,
        matches_folder=lambda path: any(path.glob("*.npy")),
        ignores_other_files=True,
    ),
    Format("npy", "a NumPy file", _NUMPY, matches_file=_begins_with(b"\x93NUMPY"), suffixes=(".npy",)),
    Format("npz", "a NumPy file", _NUMPY, matches_file=_is_npz, suffixes=(".npz",)),
    Format(
        "ctf",
        "a CTF file",
        f"{_HERE}cntk.ctf:open_files",
        matches_file=_is_ctf,
        multiple_files=True,
        suffixes=(".ctf", ".txt"),
    ),
    Format(
        "hdf5",
        "an HDF5 file",
        f"{_HERE}hdf5_zarr.hdf5:HDF5Deserializer",
        matches_file=_begins_with(b"\x89HDF\r\n\x1a\n", b"MATLAB 7.3 MAT-file"),
        multiple_files=True,
        suffixes=(".h5", ".hdf5"),
    ),
    Format(
        "csv",
        "a CSV file",
        f"{_HERE}csv:CSVDeserializer",
        multiple_files=True,
        suffixes=(".csv", ".tsv"),
        may_be_compressed=True,
        unites_schemas=True,
    ),
    Format(
        "lhotse",
        "a manifest of Lhotse",
        f"{_HERE}speech.lhotse:LhotseDeserializer",
        matches_file=_later("speech.detect_speech:is_lhotse"),
        matches_folder=_later("speech.detect_speech:is_shar"),
        multiple_files=True,
        may_be_compressed=True,
    ),
    Format(
        "nemo",
        "a manifest of NeMo",
        f"{_HERE}speech.nemo:NeMoDeserializer",
        matches_file=_later("speech.detect_speech:is_nemo"),
        matches_folder=_later("speech.detect_speech:is_tarred"),
        multiple_files=True,
        may_be_compressed=True,
        lister=f"{_HERE}speech.nemo:files_in_manifest",
    ),
    Format(
        "jsonl",
        "a JSON Lines file",
        f"{_HERE}jsonl:JSONLinesDeserializer",
        matches_file=_is_json_lines,
        multiple_files=True,
        suffixes=_JSON_LINES,
        may_be_compressed=True,
        unites_schemas=True,
    ),
    Format(
        "cbf",
        "a CBF file",
        f"{_HERE}cntk.cbf:open_files",
        matches_file=_begins_with(CBF),
        multiple_files=True,
        suffixes=(".cbf",),
    ),
    Format(
        "htk",
        "an HTK script file",
        f"{_HERE}cntk.htk:HTKFeatureDeserializer",
        suffixes=(".scp",),
        lister=f"{_HERE}cntk.htk:files_in_script",
    ),
    Format(
        "mlf",
        "an MLF file",
        f"{_HERE}cntk.mlf:open_files",
        matches_file=_begins_with(b"#!MLF!#"),
        multiple_files=True,
        suffixes=(".mlf",),
    ),
    Format(
        "tar",
        "a tar archive",
        f"{_HERE}tar:TarDeserializer",
        matches_file=lambda path, head: head[257:262] == b"ustar",
        matches_folder=lambda path: any(file.name.endswith(TAR_SUFFIXES) for file in path.glob("*.t*")),
        multiple_files=True,
        ignores_other_files=True,
        suffixes=(".tar", ".tgz"),
        may_be_compressed=True,
    ),
    Format(
        "tfrecord",
        "a TFRecord file",
        f"{_HERE}tfrecord:TFRecordDeserializer",
        matches_file=_later("detect_tfrecord:is_tfrecord"),
        multiple_files=True,
        suffixes=(".tfrecord", ".tfrecords"),
        may_be_compressed=True,
    ),
    Format(
        "recordio",
        "a RecordIO file",
        f"{_HERE}recordio:RecordIODeserializer",
        matches_file=_begins_with(b"\x0a\x23\xd7\xce"),
        matches_folder=lambda path: any(path.glob("*.rec")),
        multiple_files=True,
        ignores_other_files=True,
        suffixes=(".rec",),
    ),
    Format(
        "arrayrecord",
        "an ArrayRecord file",
        f"{_HERE}shards.arrayrecord:ArrayRecordDeserializer",
        matches_file=_begins_with(b"\x83\xafp\xd1\r\x88J?" + bytes(8) + b"\x40" + bytes(7)),
        matches_folder=lambda path: any(path.glob("*.array*record*")),
        multiple_files=True,
        ignores_other_files=True,
        suffixes=(".array_record", ".arrayrecord"),
    ),
    Format(
        "video",
        "a video",
        "feedline.video.video_files:open_videos",
        matches_file=lambda path, head: head[4:8] == b"ftyp" or head.startswith(b"\x1a\x45\xdf\xa3"),
        multiple_files=True,
        suffixes=(".mp4", ".m4v", ".mov", ".mkv", ".webm"),
    ),
    Format(
        "tokens",
        "a file of tokens",
        f"{_HERE}tokens:open_files",
        matches_file=_is_tokens,
        multiple_files=True,
        suffixes=(".bin",),
    ),
)
SUFFIXES = {suffix: fmt for fmt in FORMATS for suffix in fmt.suffixes}
_UNAMBIGUOUS = SUFFIXES.keys() - {".txt", ".bin"}  # files of other formats have these, too

_DECOMPRESS = "decompress it first, or read it in an fl.UserDeserializer"
_CONVERT = "read it in an fl.UserDeserializer (docs/how-to/own-format.md), or convert it with the library that wrote it"
_DECODE = "pass its bytes in a stream of dtype 'bytes' and decode them in an fl.Map (docs/how-to/bytes-and-text.md)"
_LINES = "write one object per line (JSON Lines): `jq -c '.[]'` does so with the items of a list"
_UNPICKLE = "feedline never unpickles data; load it and pass arrays"
# Files that are recognised but not read: first bytes, description, and advice.
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
    (b"SQLite format 3\0", "an SQLite database", _CONVERT),
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


def recognise(what: PathLike | Sequence[PathLike]) -> Recognised:
    """Return the format of a file, a folder, a pattern, or a list of these.

    Raises:
        DataError: there are no files, their format is unknown or not read, or they are of several formats.
        FeedlineError: see `installed_formats`.
        TypeError: ``what`` is none of these.
        ValueError: the list is empty.
    """
    if not isinstance(what, (str, os.PathLike)):
        if not isinstance(what, (list, tuple)):
            raise TypeError(f"expected a path, a pattern or a list of these, got {type(what).__name__}")
        parts = _recognise_each(what)
        if not parts:
            raise ValueError("expected at least one path, got an empty list")
        return _merge(parts)
    path = Path(what)
    if re.match(r"[a-z][a-z0-9+.-]+://", str(what)):
        raise DataError("expected a local path, got an address", path=str(what), hint="download it, or mount it")
    with looking(path):
        if path.is_dir():
            return _recognise_folder(path)
        if path.exists():
            return Recognised(_file_format(path), [str(path)])
    paths = list_places(what)
    if paths == [path]:
        return Recognised(_file_format(path), [str(path)])
    return _merge(_recognise_each(paths))


def _recognise_each(paths: Sequence[PathLike]) -> list[Recognised]:
    """Return the formats of paths. A file that has a shipped index is not opened, but is of the format of an earlier
    one with its suffix: the index is compared with it, and made again if the file is of another format."""
    heads = [os.fspath(path) for path in paths if not os.path.exists(f"{path}{INDEX_SUFFIX}")]
    fetch_parts([(path, 0, _HEAD_BYTES) for path in heads])
    parts: list[Recognised] = []
    formats: dict[tuple[str, str], Format] = {}
    for entry in paths:
        path = Path(entry)
        packed = path.suffix.lower() in COMPRESSED_SUFFIXES
        suffix = path.suffix.lower(), Path(path.stem).suffix.lower() if packed else ""
        if suffix in formats and os.path.exists(f"{path}{INDEX_SUFFIX}"):
            parts.append(Recognised(formats[suffix], [str(path)]))
            continue
        parts.append(recognise(entry))
        if parts[-1].paths == [str(path)]:
            formats[suffix] = parts[-1].format
    return parts


def format_name(path: PathLike) -> str:
    """Return the name of the format of a file or folder. See `recognise`."""
    return recognise(path).format.name


def _merge(parts: list[Recognised]) -> Recognised:
    """Return the files of all parts, which must be of one format."""
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


def _recognise_folder(path: Path) -> Recognised:
    with looking(path):
        fmt = next((fmt for fmt in FORMATS if _matches_folder(fmt, path)), None)
        fmt = fmt or _only_format([fmt for fmt in _installed() if _matches_folder(fmt, path)], path)
        if fmt is not None:
            if fmt.ignores_other_files:
                _warn_ignored_files(path, fmt)
            return Recognised(fmt, [str(path)])
    try:
        files = list_files(path)
    except DataError:
        files = []
    if not files:
        raise DataError(
            f"expected a folder with {MANIFEST}, *.arrow, *.parquet, *.npy or files that can be recognised, got none",
            path=str(path),
            hint=_subfolder_hint(path)
            or "name the files, or use a format's own deserializer, e.g. fl.CTFDeserializer(path, ...)",
        )
    return _merge(_recognise_each(files))


def _matches_folder(fmt: Format, path: Path) -> bool:
    """Return whether a folder as a whole is of a format."""
    if fmt.matches_folder(path):
        return True
    return fmt.folder_contains is not None and next(path.rglob(fmt.folder_contains), None) is not None


def _installed() -> tuple[Format, ...]:
    """Return the formats of other packages. Looking them up takes 10 ms and more, so built-in formats come first."""
    return installed_formats(FORMATS, tuple(sys.path))


def _only_format(formats: list[Format], path: Path) -> Format | None:
    """Return the only one of the formats of other packages that recognise a path, or None if there is none.

    Raises:
        DataError: there are several.
    """
    if len(formats) > 1:
        names = " and ".join(f"`{fmt.name}`" for fmt in formats)
        hint = "use the deserializer of one of them"
        raise DataError(f"expected one format that recognises this, got {names}", path=str(path), hint=hint)
    return formats[0] if formats else None


def _subfolder_hint(path: Path) -> str | None:
    """Return a hint that names the subfolders that can be opened, such as train and val, or None if none can."""
    try:
        formats = (*FORMATS, *_installed())
        folders = sorted(folder for folder in path.iterdir() if folder.is_dir())[:_MAX_SUBFOLDERS]
        openable = [folder.name for folder in folders if any(fmt.matches_folder(folder) for fmt in formats)]
    except OSError:
        return None
    return f"name a folder in it, or a list of them: {', '.join(openable)}" if openable else None


@functools.cache
def _warn_ignored_files(folder: Path, fmt: Format) -> None:
    """Warn once of the files directly in a folder of format ``fmt`` that are of other formats and not read."""
    suffixes = {".npy"} if fmt.name == "npy folder" else set(fmt.suffixes)
    skipped = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in _UNAMBIGUOUS - suffixes)
    if skipped:
        _log.warning(
            "%s: only its %s files are read, not %s%s; name a pattern to read others",
            folder,
            "/".join(sorted(suffixes)),
            skipped[0],
            f" and {len(skipped) - 1} more" if len(skipped) > 1 else "",
        )


def _file_format(path: Path) -> Format:
    from feedline.feed.files.compressed_text import head_of, packing_of  # a folder has no text

    with looking(path), open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
        text_head = head_of(file, _HEAD_BYTES) if packing_of(head) else None
    text_path = path.with_suffix("") if path.suffix.lower() in COMPRESSED_SUFFIXES else path

    def matches_text(fmt: Format) -> bool:
        """Return whether the file is compressed, and its text is of a format."""
        if text_head is None or not fmt.may_be_compressed:
            return False
        return fmt.matches_file(text_path, text_head) or text_path.suffix.lower() in fmt.suffixes

    for fmt in FORMATS:
        if matches_text(fmt):
            return fmt
    for fmt in FORMATS:
        if fmt.matches_file(path, head):
            return fmt
    suffix = path.suffix.lower()
    error = _foreign_error(path, head)
    if error is None and suffix in SUFFIXES:
        return SUFFIXES[suffix]
    matching = [
        fmt for fmt in _installed() if matches_text(fmt) or fmt.matches_file(path, head) or suffix in fmt.suffixes
    ]
    if (installed := _only_format(matching, path)) is not None:
        return installed
    raise error or _unknown_error(path, head)


def _foreign_error(path: Path, head: bytes) -> DataError | None:
    """Return the error for a file that is recognised by its first bytes but not read, or None for other files."""
    for magic, description, hint in _FOREIGN:
        if head.startswith(magic):
            return _unread_error(path, description, hint)
    if not head.startswith(_ZIP):
        return None
    if any(name.endswith("data.pkl") for name in _names_in_zip(path)):
        return _unread_error(path, "a PyTorch checkpoint", "load it with torch.load, and pass tensors")
    return _unread_error(path, "a zip archive", "extract it first")


def _unknown_error(path: Path, head: bytes) -> DataError:
    """Return the error for a file that no format recognises by its first bytes or its suffix."""
    if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < _MAX_HEADER:  # the length of JSON, then the JSON
        return _unread_error(path, "a file of safetensors", "load it with safetensors.numpy.load_file, and pass arrays")
    if head.lstrip().startswith(b"["):
        return _unread_error(path, "a JSON list", _LINES)
    if path.suffix.lower() == ".mds":
        return _unread_error(path, "a shard of MDS", f"pass its folder; restore the missing or damaged {INDEX} there")
    if not head:
        return DataError("expected a file of a known format, got an empty one", path=str(path), hint="write it again")
    return DataError(
        f"expected a store or a file of a known format, got one that begins with {head[:8]!r}",
        path=str(path),
        hint=f"known suffixes: {', '.join(SUFFIXES)}; or use the format's own deserializer",
    )


def _unread_error(path: Path, description: str, hint: str) -> DataError:
    return DataError(f"expected a file that feedline reads, got {description}", path=str(path), hint=hint)


def _names_in_zip(path: Path) -> list[str]:
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return []
