"""Folders of shards as MosaicML Streaming and LitData write them, from the bytes of fields: slow and obvious."""

from __future__ import annotations

import json
import struct
from pathlib import Path


def shard_of(samples, config=b""):
    """A shard of encoded samples."""
    at = [4 + 4 * (len(samples) + 1) + len(config)]
    for sample in samples:
        at.append(at[-1] + len(sample))
    return struct.pack(f"<{len(at) + 1}I", len(samples), *at) + config + b"".join(samples)


def write_mds(folder, columns, rows, per_shard):
    """Rows of bytes under ``columns``, name to (encoding, bytes of every field, or None)."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    sizes = [size for _, size in columns.values()]
    about = {"format": "mds", "version": 2, "compression": None, "zip_data": None}
    about |= {"column_names": list(columns), "column_encodings": [kind for kind, _ in columns.values()]}
    about |= {"column_sizes": sizes}
    shards = []
    for first in range(0, len(rows), per_shard):
        part = rows[first : first + per_shard]
        heads = [
            b"".join(struct.pack("<I", len(v)) for v, n in zip(row, sizes, strict=True) if n is None) for row in part
        ]
        content = shard_of([head + b"".join(row) for head, row in zip(heads, part, strict=True)], b"{}")
        name = f"shard.{len(shards):05d}.mds"
        (folder / name).write_bytes(content)
        raw = {"basename": name, "bytes": len(content), "hashes": {}}
        shards.append({**about, "samples": len(part), "raw_data": raw})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def leaf():
    """A substitute for a leaf of a tree."""
    return {"type": None, "context": None, "children_spec": []}


def tree(names):
    """A dict of leaves."""
    keys = json.dumps(list(names))
    return {"type": "builtins.dict", "context": keys, "children_spec": [leaf() for _ in names]}


def write_litdata(folder, formats, rows, per_chunk, *, older=False, spec=None, config=()):
    """Rows of bytes under ``formats``: names and LitData's encodings. ``older``: before chunks named their loader.

    Without ``formats``: each row has tokens, in the encoding of ``config``, and their number.
    """
    folder = Path(folder)
    folder.mkdir(parents=True)
    chunks = []
    for first in range(0, len(rows), per_chunk):
        part, dim = rows[first : first + per_chunk], None
        if formats:
            samples = [struct.pack(f"<{len(row)}I", *map(len, row)) + b"".join(row) for row in part]
        else:
            samples, dim = [tokens for tokens, _ in part], sum(count for _, count in part)
        content = shard_of(samples)
        name = f"chunk-0-{len(chunks)}.bin"
        (folder / name).write_bytes(content)
        size = sum(map(len, samples)) if older else len(content)
        chunks.append({"chunk_bytes": size, "chunk_size": len(part), "dim": dim, "filename": name})
    about = {"chunk_bytes": 1 << 26, "chunk_size": None, "compression": None}
    about |= {"data_format": list(formats.values()), "data_spec": json.dumps([1, spec or tree(formats)])}
    if not older:
        about |= {"compression_level": None, "encryption": None, "item_loader": "PyTreeLoader"}
    index = {"chunks": chunks, "config": {**about, **dict(config)}}
    (folder / "index.json").write_text(json.dumps(index))


def write_litdata_rows(folder, table, per_chunk):
    """An Arrow table as LitData writes dicts: an Arrow file after a table of offsets that are all the same."""
    import pyarrow as pa

    write_litdata(folder, dict.fromkeys(table.schema.names, "json"), [[]] * table.num_rows, per_chunk)
    index = json.loads((Path(folder) / "index.json").read_text())
    for k, chunk in enumerate(index["chunks"]):
        part, sink = table.slice(k * per_chunk, per_chunk), pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(part, max_chunksize=256)
        rows = sink.getvalue().to_pybytes()
        content = shard_of([b""] * part.num_rows) + rows + struct.pack("<I8s", len(rows), b"LDARW01\0")
        (Path(folder) / chunk["filename"]).write_bytes(content)
        chunk["chunk_bytes"] = len(content)
    (Path(folder) / "index.json").write_text(json.dumps(index))


def edit_index(folder, change):
    """Change the index."""
    index = json.loads((Path(folder) / "index.json").read_text())
    change(index)
    (Path(folder) / "index.json").write_text(json.dumps(index))


def edit_bytes(path, byte, data):
    """Change some bytes of a file."""
    content = bytearray(Path(path).read_bytes())
    byte %= len(content)
    content[byte : byte + len(data)] = data
    Path(path).write_bytes(content)


def bounds_of(path):
    """The offsets of a shard."""
    content = Path(path).read_bytes()
    return struct.unpack_from(f"<{int.from_bytes(content[:4], 'little') + 1}I", content, 4)
