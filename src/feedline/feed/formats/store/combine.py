"""Combine several stores of one schema. Their files are linked under new names, and get one common manifest."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from feedline import _native
from feedline.errors import SchemaError
from feedline.feed.formats.store.manifest import MANIFEST, Lengths, Manifest, StoreFile
from feedline.feed.formats.store.writer import LengthsFile


def combine(stores: Sequence[Path], folder: Path) -> Manifest:
    """Fill ``folder``, which is empty and on the same file system, with the sequences of all ``stores``, in order.

    The stores are unchanged. Their Arrow files are linked, or copied if links are not possible. This takes no memory,
    and reads only 4 bytes per sequence and ragged stream.

    Raises:
        SchemaError: the stores differ in their streams.
        DataError: a store is damaged.
        OSError: the files cannot be written.
    """
    manifests = [Manifest.load(store) for store in stores]
    schema = manifests[0].schema
    for store, manifest in zip(stores, manifests, strict=True):
        if (manifest.schema.digest, manifest.compression) != (schema.digest, manifests[0].compression):
            raise SchemaError(f"expected the streams and compression of {stores[0]} in every store, unlike {store}")
    ragged = [name for name in schema if any(name in manifest.lengths for manifest in manifests)]
    lengths = {}
    for i, name in enumerate(schema):
        if name in ragged:
            lengths[name] = _join_lengths(stores, manifests, name, LengthsFile(folder, i))
    parts: list[StoreFile] = []
    for store, manifest in zip(stores, manifests, strict=True):
        for part in manifest.parts:
            file = f"part-{len(parts):05d}.arrow"
            _link(store / part.file, folder / file)
            # Streams that are ragged only in another store have one sample per sequence here.
            totals = {name: part.totals.get(name, part.chunks["sequences"]) for name in ragged}
            parts.append(dataclasses.replace(part, file=file, totals=totals))
    combined = Manifest(schema, lengths, parts, manifests[0].compression)
    with open(folder / MANIFEST, "xb") as out:
        out.write(combined.dump())
        out.flush()
        os.fsync(out.fileno())
    return combined


def _join_lengths(stores: Sequence[Path], manifests: Sequence[Manifest], name: str, lengths: LengthsFile) -> Lengths:
    try:
        for store, manifest in zip(stores, manifests, strict=True):
            stored = np.broadcast_to(np.int32(1), manifest.sequences)
            if name in manifest.lengths:
                stored = np.load(store / manifest.lengths[name].file, mmap_mode="r", allow_pickle=False)
            for start in range(0, len(stored), 1 << 20):
                lengths.add(_native.copied(np.ascontiguousarray(stored[start : start + (1 << 20)], "<i4")))
        return lengths.close(sum(manifest.sequences for manifest in manifests))
    finally:
        lengths.drop()


def _link(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination)
    except OSError:  # a file system without hard links, or a limit on them
        shutil.copyfile(source, destination)
        with open(destination, "rb") as file:
            os.fsync(file.fileno())
