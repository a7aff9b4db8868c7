"""Loops over sources of corpora and stores."""

from __future__ import annotations

import gzip
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.torture.verdicts.program import Place, Program, compute, train
from tests.torture.verdicts.surroundings import (
    Slowness,
    evict,
    in_child,
    lacks_limits,
    lacks_object_store,
    lacks_swap,
    serve,
    swap,
)

_STEP_S = 0.002


def _train(corpus: Any, size: int, step_s: float = _STEP_S, sweeps: int = 1, **options: Any) -> None:
    import feedline as fl

    with fl.MinibatchSource(corpus, max_sweeps=sweeps, **options) as source:
        train(source.minibatches(size), step_s)


def _arrays(rows: int, width: int) -> Any:
    import feedline as fl

    rng = np.random.default_rng(1)
    return fl.ArrayDeserializer(x=rng.standard_normal((rows, width), dtype=np.float32), y=np.arange(rows))


def _store(folder: Path, rows: int, width: int, **options: Any) -> Path:
    """Write a store, in a process of its own."""
    path = folder / "data.store"

    def write() -> None:
        import feedline as fl

        fl.convert(_arrays(rows, width), path, **options)

    in_child(write)
    return path


def _slow_function(place: Place) -> None:
    def augment(sequence: Any) -> dict[str, Any]:
        compute(0.5e-3)
        return {"x": sequence["x"] * 2}

    _train(_arrays(3000, 16), 32, transforms=[augment])


def _slow_sequence(place: Place) -> None:
    def augment(sequence: Any) -> dict[str, Any]:
        time.sleep(1.5 if sequence["y"][0] == 777 else 0.2e-3)
        return {"x": sequence["x"]}

    _train(_arrays(3000, 16), 32, transforms=[augment])


def _parquet(folder: Path, rows: int) -> Path:
    """Write rows of 4 KiB to a Parquet file with row groups of a mebibyte, in a process of its own."""

    def write() -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        import feedline as fl

        fl.convert(_arrays(rows, 1024), folder / "data.store", chunk_bytes=1 << 20)
        (part,) = (folder / "data.store").glob("*.arrow")
        table = pa.ipc.open_file(pa.memory_map(str(part))).read_all()
        pq.write_table(table, folder / "data.parquet", row_group_size=256, compression="none", use_dictionary=False)

    in_child(write)
    return folder


def _small_cache(place: Place) -> None:
    import feedline as fl

    with serve(_parquet(place.folder, 28 << 10)) as urls:  # 112 MiB
        remote = fl.Remote(cache=place.folder / "cache", cache_bytes=(256 if place.mended else 64) << 20)
        _train(fl.open_corpus(urls, remote=remote), 512, 0.5e-3, sweeps=4, shuffle=fl.Window(bytes=16 << 20))


def _throttled_bucket(place: Place) -> None:
    import feedline as fl

    chance = random.Random(1)

    def refuse(asked: Any) -> tuple[int, dict[str, str]] | None:
        return (503, {}) if not place.mended and chance.random() < 0.4 else None

    with serve(_parquet(place.folder, 16 << 10), refuse) as urls:
        remote = fl.Remote(cache=place.folder / "cache")
        _train(fl.open_corpus(urls, remote=remote), 128, 0.5e-3, shuffle=fl.Window(bytes=4 << 20))


def _slow_network(place: Place) -> None:
    """The objects of rank 1 come over a slow line."""
    import feedline as fl

    slow = place.rank == 1 and not place.mended
    with serve(_parquet(place.folder, 16 << 10), pause_s=10e-3 if slow else 0.0) as urls:
        remote = fl.Remote(cache=place.folder / "cache")
        shuffle = fl.Window(bytes=4 << 20)
        _train(fl.open_corpus(urls, remote=remote), 128, 0.015, shuffle=shuffle, partition=(0, 1))


def _text(folder: Path, rows: int = 40_000, width: int = 16, suffix: str = "") -> Path:
    path = folder / f"data.jsonl{suffix}"
    rng = np.random.default_rng(1)
    text = "".join(json.dumps({"x": row, "y": i}) + "\n" for i, row in enumerate(rng.random((rows, width)).tolist()))
    path.write_bytes(gzip.compress(text.encode(), 1) if suffix else text.encode())
    return path


def _streams(width: int = 16) -> dict[str, Any]:
    import feedline as fl

    return {"x": fl.Stream(width), "y": fl.Stream((), "int64")}


def _no_reading_ahead(place: Place) -> None:
    import feedline as fl

    corpus = fl.JSONLinesDeserializer(_text(place.folder, 20_000, 64), _streams(64), chunk_size=256 << 10)
    ahead = {} if place.mended else {"read_ahead": 1}
    _train(corpus, 128, 1e-3, sweeps=4, shuffle=fl.Window(bytes=6 << 20), **ahead)


def _whole_shuffle(place: Place) -> None:
    import feedline as fl

    store = _store(place.folder, 32 << 10, 512, chunk_bytes=1 << 20)  # 64 MiB
    with Slowness(place.folder, operations=300) as limits:
        evict(store)
        limits.begin()
        shuffle = fl.Window(bytes=8 << 20) if place.mended else "whole"
        _train(fl.open_corpus(str(store)), 128, 1e-3, shuffle=shuffle)


def _full_page_cache(place: Place) -> None:
    """Other programs push the data out of memory, so each sweep reads it from the disk."""
    import feedline as fl

    store = _store(place.folder, 16 << 10, 512, chunk_bytes=1 << 20)  # 32 MiB
    with Slowness(place.folder, bytes_=48 << 20) as limits:
        evict(store)
        limits.begin()
        with fl.MinibatchSource(fl.open_corpus(str(store)), shuffle=fl.Window(bytes=4 << 20)) as source:
            began = time.monotonic()
            for sweep in range(1, 5):
                for _ in source.minibatches(128, until=fl.sweeps(sweep)):
                    time.sleep(1e-3)
                if not place.mended:
                    evict(store)
            print(f"seconds {time.monotonic() - began:.4f}", flush=True)


def _compressed_text(place: Place) -> None:
    import feedline as fl

    path = _text(place.folder, 20_000, suffix=".gz")
    corpus: Any = fl.JSONLinesDeserializer(path, _streams(), chunk_size=256 << 10)
    if place.mended:
        fl.convert(corpus, place.folder / "mended.store")
        corpus = fl.open_corpus(str(place.folder / "mended.store"))
    _train(corpus, 256, 0.2e-3, sweeps=6, shuffle=False)


def _compressed_store(place: Place) -> None:
    import feedline as fl

    store = _store(place.folder, 64 << 10, 256, compression=None if place.mended else "zstd")
    _train(fl.open_corpus(str(store)), 1024, 0.1e-3, sweeps=6, shuffle=fl.Window(bytes=8 << 20))


def _folder_of_files(place: Place) -> None:
    import feedline as fl

    for number in range(3000):
        path = place.folder / "train" / f"class{number % 10}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xd8" + bytes(500))
    train_files = place.folder / "train"
    corpus: Any = fl.open_corpus(str(train_files))
    if place.mended:
        fl.convert(corpus, place.folder / "mended.store")
        corpus = fl.open_corpus(str(place.folder / "mended.store"))
    with Slowness(place.folder, operations=2000) as limits:
        evict(place.folder)
        limits.begin()
        _train(corpus, 64, 2e-3, shuffle=fl.Window(chunks=8))


def _swapping(place: Place) -> None:
    """Memory that a transform uses is in swap."""
    import mmap

    size = 96 << 20
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    table = np.frombuffer(memory, np.uint8)
    table[::4096] = 1
    advice = getattr(mmap, "MADV_PAGEOUT", 21)
    chance = np.random.default_rng(1)

    def look_up(sequence: Any) -> dict[str, Any]:
        if not place.mended and sequence["y"][0] % 512 == 0:
            memory.madvise(advice)
        return {"x": sequence["x"] + table[chance.integers(0, size, 16)].sum()}

    _train(_arrays(6000, 16), 32, 1e-3, transforms=[look_up])


def _healthy_store(place: Place) -> None:
    import feedline as fl

    store = _store(place.folder, 16 << 10, 256)
    _train(fl.open_corpus(str(store)), 256, 0.01, sweeps=2)


def _healthy_corpus(place: Place) -> None:
    import feedline as fl

    def scale(sequence: Any) -> dict[str, Any]:
        return {"x": sequence["x"] * 2}

    corpus = fl.open_corpus(str(_text(place.folder, 10_000)), streams=_streams())
    _train(corpus, 64, 0.012, transforms=[scale])


def _healthy_objects(place: Place) -> None:
    import feedline as fl

    with serve(_parquet(place.folder, 8 << 10)) as urls:
        remote = fl.Remote(cache=place.folder / "cache")
        _train(fl.open_corpus(urls, remote=remote), 64, 0.015, sweeps=1, shuffle=fl.Window(bytes=4 << 20))


PROGRAMS = (
    Program("slow-function", _slow_function, "transform", ("Python function", "augment")),
    Program("slow-sequence", _slow_sequence, "transform", ("1 sample", "sequence 777")),
    Program("small-cache", _small_cache, "fetch", ("cache of objects",), lacks=lacks_object_store, mends=True),
    Program("throttled-bucket", _throttled_bucket, "fetch", ("refuses",), lacks=lacks_object_store, mends=True),
    Program(
        "slow-network", _slow_network, "fetch", ("slower on this rank",), 1, 3, lacks=lacks_object_store, mends=True
    ),
    Program("no-reading-ahead", _no_reading_ahead, "decode", ("read ahead",), mends=True),
    Program("whole-shuffle", _whole_shuffle, "fetch", ("whole shuffle",), lacks=lacks_limits, mends=True),
    Program("full-page-cache", _full_page_cache, "fetch", ("page cache",), lacks=lacks_limits),
    Program("compressed-text", _compressed_text, "decode", ("slower than the disk",), mends=True),
    Program("compressed-store", _compressed_store, "decode", ("slower than the disk",), mends=True),
    Program("folder-of-files", _folder_of_files, "fetch", ("small files",), lacks=lacks_limits, mends=True),
    Program("swapping", _swapping, "transform", ("swaps",), around=swap, lacks=lacks_swap, mends=True),
    Program("healthy-store", _healthy_store),
    Program("healthy-corpus", _healthy_corpus),
    Program("healthy-objects", _healthy_objects, lacks=lacks_object_store),
)
