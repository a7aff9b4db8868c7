"""NumPy's files as a corpus. ``.npy`` files and folders of them are mapped, ``.npz`` files are loaded."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.data import Stream
from feedline.errors import DataError, SchemaError
from feedline.feed.files.mapped_arrays import map_npy
from feedline.feed.files.paths import open_file, status_of
from feedline.feed.formats.arrays import ArrayDeserializer


def open_files(paths: list[str], streams: Mapping[str, Stream], memory_bytes: int) -> ArrayDeserializer:
    """Open a file, or a folder of ``.npy`` files. See `open_corpus`."""
    path = Path(paths[0])
    files = sorted(path.glob("*.npy"), key=os.fsencode) if path.is_dir() else [path]
    arrays: dict[str, Any] = {}
    loaded: dict[str, Any]
    for file in files:
        with open_file(file, -1) as opened:
            try:
                if _is_zip(opened):
                    loaded = _load_npz(opened, streams, memory_bytes)
                else:
                    loaded = {"x" if file == path else file.stem: map_npy(file)}
                size = status_of(opened).st_size
                for name, array in loaded.items():  # rows without bytes cost a file nothing
                    if isinstance(array, np.ndarray) and array.ndim and array.nbytes == 0 and len(array) > size:
                        raise ValueError(f"`{name}` claims {len(array)} rows without values, in {size} bytes")
                arrays.update(loaded)
            except DataError:
                raise
            except Exception as error:  # NumPy lets the errors of zipfile, zlib and its own parser through
                raise DataError(f"expected arrays of numbers: {error}", path=str(file)) from error
    if missing := [name for name in streams if name not in arrays]:
        raise SchemaError(f"expected the arrays {', '.join(missing)} in {path}, which has {', '.join(arrays)}")
    size_stream = next((name for name, stream in streams.items() if stream.defines_size), None)
    try:
        corpus = ArrayDeserializer({name: arrays[name] for name in streams or arrays}, defines_size=size_stream)
    except (TypeError, ValueError) as error:  # of records, dates or a scalar, which are no wrong arguments here
        raise SchemaError(str(error)) from error
    except DataError as error:  # no sequences
        raise DataError(str(error), path=str(path)) from error
    corpus.name = str(path)
    return corpus


def _load_npz(file: BinaryIO, names: Collection[str], memory_bytes: int) -> dict[str, NDArray[Any] | None]:
    """Return the arrays ``names``, or without names all arrays. Arrays that are not loaded are None.

    A small file may decompress to huge arrays, so sizes are checked first.
    """
    with np.load(file, allow_pickle=False) as archive:
        # zipfile decompresses no more than this, even if the header of an array claims more.
        sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.zip.infolist()}
        selected = [name for name in archive.files if not names or name in names]
        total = sum(sizes[name] for name in selected)
        if total > memory_bytes:
            raise DataError(
                f"expected at most {memory_bytes} bytes when loaded (memory), got {total} in {', '.join(selected)}",
                path=file.name,
                hint="raise memory=, or save it as .npy files, which are mapped",
            )
        return {name: archive[name] if name in selected else None for name in archive.files}


def _is_zip(file: BinaryIO) -> bool:
    start = file.read(2)
    file.seek(0)
    return start == b"PK"
