"""What a file or folder holds: the format by name and first bytes, streams of CTF text by a scan.

A guess for the first look and for conversion. Programs that must not be surprised name the format's own
deserializer and declare their streams.
"""

from __future__ import annotations

import os
from pathlib import Path

from feedline.data import Stream
from feedline.errors import DataError
from feedline.feed.files.paths import looking, open_regular
from feedline.feed.formats.store.manifest import MANIFEST

SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npy": "npy",
    ".npz": "npz",
    ".ctf": "ctf",
    ".txt": "ctf",
    ".csv": "csv",
}
FILES = {"parquet": "a Parquet", "npy": "a NumPy", "npz": "a NumPy", "ctf": "a CTF", "csv": "a CSV"}
_MAGIC = {b"PAR1": "parquet", b"\x93NUMPY": "npy", b"PK\x03\x04": "npz"}


def guess_format(path: str | os.PathLike[str]) -> str:
    """``"store"``, ``"parquet"``, ``"npy"``, ``"npz"``, ``"ctf"``, ``"csv"`` or ``"npy folder"``.

    Raises:
        DataError: nothing there, or nothing known.
    """
    place = Path(path)
    with looking(place):
        if place.is_dir():
            if (place / MANIFEST).is_file():
                return "store"
            if next(place.rglob("*.parquet"), None) is not None:
                return "parquet"
            if next(place.glob("*.npy"), None) is not None:
                return "npy folder"
            raise DataError(
                f"expected a folder with {MANIFEST}, *.parquet or *.npy",
                path=str(place),
                hint="for a folder of CTF text: fl.CTFDeserializer(path, ...)",
            )
        with open_regular(place) as file:
            head = file.read(8)
    for magic, found in _MAGIC.items():
        if head.startswith(magic):
            return found
    known = SUFFIXES.get(place.suffix.lower())
    if known is None:
        raise DataError(
            f"expected a store, Parquet, NumPy, CTF or CSV file, got one that begins with {head!r}",
            path=str(place),
            hint=f"known suffixes: {', '.join(SUFFIXES)}; or use the format's own deserializer",
        )
    return known


def infer_ctf_streams(path: str | os.PathLike[str], scan_bytes: int = 4 << 20) -> dict[str, Stream]:
    """Streams of a CTF file, in order of appearance, from its first bytes; float32.

    A dense stream has as many values as its longest sample, a sparse one (``index:value``) as many classes as
    its highest index plus one. Later text may hold more: declare such streams yourself.

    Args:
        path: the file.
        scan_bytes: how much of the file is looked at.

    Raises:
        DataError: no sample at all, a stream both dense and sparse, or one without any value to tell by.
    """
    name = os.fspath(path)
    try:
        with open_regular(path) as file:
            text = file.read(scan_bytes)
            whole = len(file.read(1)) == 0
    except OSError as error:
        raise DataError(f"expected a readable file: {error.strerror}", path=name) from error
    if not whole:
        # The last line is cut; unless it is the only one, leave it out.
        text = text[: text.rfind(b"\n") + 1] or text
    sizes: dict[str, int] = {}
    kinds: dict[str, bool | None] = {}
    for number, line in enumerate(text.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        for sample in line.split(b"|")[1:]:
            field, _, rest = sample.replace(b"\t", b" ").partition(b" ")
            if field.startswith(b"#") or not field.strip():
                continue
            _look(field.strip().decode("utf-8", "replace"), rest.split(), kinds, sizes, name, number)
    if not kinds:
        raise DataError("expected CTF text with samples such as `|x 1 2 3`, got none", path=name)
    if unknown := [field for field, kind in kinds.items() if kind is None]:
        raise DataError(
            f"expected values that tell what `{unknown[0]}` is, got none in the first {len(text)} bytes",
            path=name,
            stream=unknown[0],
            hint=f"declare it: {unknown[0]}=fl.Stream(shape=..., sparse=...)",
        )
    return {field: Stream(sizes[field], sparse=bool(kind)) for field, kind in kinds.items()}


def _look(
    field: str,
    values: list[bytes],
    kinds: dict[str, bool | None],
    sizes: dict[str, int],
    path: str,
    line: int,
) -> None:
    kinds.setdefault(field, None)
    if not values:
        return
    sparse = b":" in values[0]
    if any((b":" in value) != sparse for value in values) or kinds[field] not in (None, sparse):
        raise DataError("expected either numbers or index:value pairs, got both", path=path, line=line, stream=field)
    size = len(values)
    if sparse:
        indices = [value.split(b":")[0] for value in values]
        if wrong := [value for value, index in zip(values, indices, strict=True) if not index.isdigit()]:
            raise DataError(
                f"expected index:value pairs, got `{wrong[0].decode('utf-8', 'replace')}`",
                path=path,
                line=line,
                stream=field,
                hint=f"declare the streams, so that nothing is guessed from such text: {field}=fl.Stream(...)",
            )
        size = 1 + max(map(int, indices))
    kinds[field] = sparse
    sizes[field] = max(sizes.get(field, 0), size)
