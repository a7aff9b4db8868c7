"""Every format by its address: what is delivered is what is delivered from a disk, in the same order."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import feedline as fl
from feedline.feed.formats.detect import recognise
from tests.feed.remote.conftest import delivered
from tests.laws.test_formats_killed import WRITERS, X, Y
from tests.servers.object_store import ObjectStore


def write_compressed(folder: Path) -> Path:
    fl.convert(fl.ArrayDeserializer(x=X, y=Y), folder / "store", chunk_bytes=300, compression="zstd")
    return folder / "store"


EVERY = {**WRITERS, "compressed store": (write_compressed, {})}


def write_zarr_zip(folder: Path) -> Path:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    archive = zarr.storage.ZipStore(folder / "a.zip", mode="w")
    group = zarr.group(archive)
    for name, values in {"x": X, "y": Y}.items():
        group.create_array(name, shape=values.shape, chunks=(7, *values.shape[1:]), dtype=values.dtype)[:] = values
    archive.close()
    return folder / "a.zip"


EVERY["zarr archive"] = (write_zarr_zip, {})

# The others are fetched as a whole: their libraries read files.
RANGED = {
    "arrow",
    "base64 images",
    "hdf5",
    "htk",
    "image folder",
    "mlf",
    "zarr",
    "zarr archive",
    "npy folder",
    "npz",
    "tokens",
    "compressed store",
    "store",
    "ctf",
    "csv",
    "jsonl",
    "litdata",
    "mds",
    "mixture",
    "parquet",
    "tar",
    "tfrecord",
}


@pytest.mark.parametrize("name", EVERY)
def test_formats_read_by_ranges_are_known(tmp_path, name):
    write, _ = EVERY[name]
    form, paths = recognise(write(tmp_path))
    assert all(form.reads_by_ranges(Path(path)) for path in paths) == (name in RANGED)


@pytest.mark.parametrize("name", EVERY)
def test_delivers_what_a_disk_delivers(tmp_path, name):
    (tmp_path / "root" / "b").mkdir(parents=True)
    local = tmp_path / "root" / "b"
    write, streams = EVERY[name]
    path = write(local)
    expected = delivered(fl.open_corpus(path, **streams))
    with ObjectStore(tmp_path / "root") as store:
        where = path.relative_to(local)
        with contextlib.closing(
            fl.open_corpus(
                "s3://b" if str(where) == "." else f"s3://b/{where}",
                cache=tmp_path / "cache",
                storage_options=store.s3(),
                **streams,
            )
        ) as corpus:
            assert corpus.digest() == fl.open_corpus(path, **streams).digest()
            assert delivered(corpus) == expected


@pytest.mark.parametrize("name", sorted(RANGED - {"mixture"}))
def test_reads_nothing_twice_and_no_more_than_there_is(tmp_path, name):
    """Names cost one or two requests, and each byte is fetched once, however often it is opened and read."""
    (tmp_path / "root" / "b").mkdir(parents=True)
    write, streams = EVERY[name]
    where = write(tmp_path / "root" / "b").relative_to(tmp_path / "root" / "b")
    total = sum(file.stat().st_size for file in (tmp_path / "root").rglob("*") if file.is_file())
    with ObjectStore(tmp_path / "root") as store:
        for round in range(2):
            with contextlib.closing(
                fl.open_corpus(
                    "s3://b" if str(where) == "." else f"s3://b/{where}",
                    cache=tmp_path / "cache",
                    storage_options=store.s3(),
                    **streams,
                )
            ) as corpus:
                delivered(corpus)
            counters = store.counters()
            assert counters.requests["LIST"] <= 2 * (round + 1)
            assert counters.requests["HEAD"] == 0
            assert counters.sent_bytes["GET"] <= total
            if round == 0:
                fetched = counters.sent_bytes["GET"]
        assert counters.sent_bytes["GET"] == fetched
