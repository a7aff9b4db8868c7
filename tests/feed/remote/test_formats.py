"""Every format by its address: the same sequences as from a disk, in the same order."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from tests.feed.formats.shard_writers import write_litdata, write_litdata_rows
from tests.feed.remote.conftest import delivered
from tests.laws.test_formats_killed import WRITERS, X, Y, table
from tests.servers.object_store import ObjectStore


def write_compressed(folder: Path) -> Path:
    fl.convert(fl.ArrayDeserializer(x=X, y=Y), folder / "store", chunk_bytes=300, compression="zstd")
    return folder / "store"


def write_tokens_of_litdata(folder: Path) -> Path:
    rows = [(np.arange(n, dtype=np.int32).tobytes(), n) for n in (55, 56, 48)]
    config = {"data_format": ["no_header_numpy:2"], "item_loader": "TokensLoader"}
    write_litdata(folder / "litdata", {}, rows, 2, config=list(config.items()))
    return folder / "litdata"


def write_rows_of_litdata(folder: Path) -> Path:
    write_litdata_rows(folder / "litdata", table(slice(0, 60)), 13)
    return folder / "litdata"


EVERY = {
    # The addresses of media are paths, which differ: tests of speech and video compare what is decoded.
    **{name: writer for name, writer in WRITERS.items() if name not in ("lhotse", "nemo", "video")},
    "compressed store": (write_compressed, {}),
    "tokens of litdata": (write_tokens_of_litdata, {"tokens": fl.Stream(16, "int32")}),
    "rows of litdata": (write_rows_of_litdata, {}),
}


def write_zarr_zip(folder: Path) -> Path:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    archive = zarr.storage.ZipStore(folder / "a.zip", mode="w")
    group = zarr.group(archive)
    for name, values in {"x": X, "y": Y}.items():
        group.create_array(name, shape=values.shape, chunks=(7, *values.shape[1:]), dtype=values.dtype)[:] = values
    archive.close()
    return folder / "a.zip"


EVERY["zarr archive"] = (write_zarr_zip, {})


@pytest.mark.parametrize("name", EVERY)
def test_delivers_what_a_disk_delivers(tmp_path, name):
    (tmp_path / "root" / "b").mkdir(parents=True)
    local = tmp_path / "root" / "b"
    write, streams = EVERY[name]
    path = write(local)
    expected = delivered(fl.open_corpus(path, streams=streams))
    with ObjectStore(tmp_path / "root") as store:
        where = path.relative_to(local)
        with contextlib.closing(
            fl.open_corpus(
                "s3://b" if str(where) == "." else f"s3://b/{where}",
                streams=streams,
                remote=fl.Remote(cache=tmp_path / "cache", storage_options=store.s3()),
            )
        ) as corpus:
            assert corpus.digest() == fl.open_corpus(path, streams=streams).digest()
            assert delivered(corpus) == expected


@pytest.mark.parametrize("name", sorted(EVERY.keys() - {"mixture"}))
def test_reads_nothing_twice_and_no_more_than_there_is(tmp_path, name):
    """Names cost one request or two, an index one more, and each byte is fetched once, however often it is read."""
    (tmp_path / "root" / "b").mkdir(parents=True)
    write, streams = EVERY[name]
    where = write(tmp_path / "root" / "b").relative_to(tmp_path / "root" / "b")
    total = sum(file.stat().st_size for file in (tmp_path / "root").rglob("*") if file.is_file())
    with ObjectStore(tmp_path / "root") as store:
        for round in range(2):
            with contextlib.closing(
                fl.open_corpus(
                    "s3://b" if str(where) == "." else f"s3://b/{where}",
                    streams=streams,
                    remote=fl.Remote(cache=tmp_path / "cache", storage_options=store.s3()),
                )
            ) as corpus:
                delivered(corpus)
            counters = store.counters()
            assert counters.requests["LIST"] + counters.requests["HEAD"] <= 3 * (round + 1)
            assert counters.sent_bytes["GET"] <= total
            if round == 0:
                fetched = counters.sent_bytes["GET"]
        assert counters.sent_bytes["GET"] == fetched


def test_errors_on_schemas_name_the_address_alone(store, opened, tmp_path):
    store.put("b/a.csv", b"x,y\n1,2\n")
    np.save(tmp_path / "a.npy", np.zeros(3, "M8[s]"))
    store.put("b/a.npy", (tmp_path / "a.npy").read_bytes())
    for name, streams in (("a.csv", {"z": fl.Stream(())}), ("a.npy", {})):
        with pytest.raises(fl.SchemaError, match=f"s3://b/{name}") as caught:
            opened(name, **streams)
        assert str(tmp_path) not in str(caught.value)


def test_heads_and_footers_of_several_files_are_fetched_together(store, opened):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet as pq

    for k in range(4):
        buffer = io.BytesIO()
        pq.write_table(pa.table({"x": np.arange(100_000 * k, 100_000 * (k + 1))}), buffer, compression="none")
        store.put(f"b/rows/{k}.parquet", buffer.getvalue())
    store.set(latency_s=0.2)
    store.reset()
    corpus = opened("rows/*.parquet")
    names = [entry.name for entry in store.log() if entry.kind == "GET"]
    assert store.counters().most_at_once >= 3
    # A head, and the end that pyarrow reads first, which also holds the footer.
    assert set(names[:4]) == set(names[4:8]) == {f"b/rows/{k}.parquet" for k in range(4)}
    assert len(names) <= 12
    assert corpus.schema["x"].dtype == "int64"
