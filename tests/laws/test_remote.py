"""The laws of order, resuming and partition over an object store that fails, and caches of any size.

A source over a store delivers the same sequences as from a disk, wherever it is stopped and continued, for any number
of ranks, whatever part of the data the cache keeps, and after any temporary failure.
"""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.remote import object_cache as caches
from feedline.feed.remote import requests
from tests.effort import examples
from tests.servers.object_store import ObjectStore

pytest.importorskip("obstore", reason="obstore is not installed")

KIB = 1 << 10
FAULTS = [
    {"kind": "status", "status": 503, "times": 2},
    {"kind": "status", "status": 500, "every": 3, "times": 5},
    {"kind": "reset", "at": 2000, "every": 2, "times": 4},
    {"kind": "short", "at": 9000, "every": 3, "times": 4},
    {"kind": "drop", "every": 4, "times": 3},
    {"kind": "narrow", "at": 4000, "every": 3, "times": 3},
]


def table(seed: int, rows: int):
    """Rows of random bytes of different lengths. Two of a file are unreadable because of their length."""
    import pyarrow as pa

    rng = np.random.default_rng(seed)
    return pa.table({"x": [rng.bytes(int(n)) for n in rng.integers(1, 9000, rows)], "y": np.arange(rows) + 1000 * seed})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A bucket and a folder with the same files of two formats, one of them with damaged lines."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = tmp_path_factory.mktemp("remote")
    (root / "b" / "parquet").mkdir(parents=True)
    (root / "b" / "lines").mkdir()
    for seed in range(3):
        file = io.BytesIO()
        pq.write_table(table(seed, 50), file, row_group_size=6, compression=None)
        (root / "b" / "parquet" / f"{seed}.parquet").write_bytes(file.getvalue())
        rows = [json.dumps({"y": i + 100 * seed, "t": "w" * (i % 30)}) for i in range(60)]
        rows[7 + seed] = '{"y": "damaged"}'
        (root / "b" / "lines" / f"{seed}.jsonl").write_text("\n".join(rows))
    rows = table(9, 400)
    arrays = fl.ArrayDeserializer(
        x=rows["x"].to_pylist(), y=rows["y"].to_numpy(), z=[np.ones(i % 4) for i in range(400)]
    )
    fl.convert(arrays, root / "b" / "mapped", chunk_bytes=100_000, part_bytes=500_000)
    (root / "b" / "arrow").mkdir()
    for seed in range(2):
        rows = table(20 + seed, 200)
        with pa.ipc.new_stream(str(root / "b" / "arrow" / f"{seed}.arrow"), rows.schema) as stream:
            stream.write_table(rows, max_chunksize=30)
    patch = pytest.MonkeyPatch()
    patch.setattr(caches, "MIN_CACHE_BYTES", 0)
    patch.setattr(requests, "_FIRST_DELAY_S", 0.002)
    with ObjectStore(root) as store:
        yield store, root / "b"
    patch.undo()


STREAMS = {
    "parquet": {},
    "arrow": {},
    "mapped": {},
    "lines": {"y": fl.Stream((), "int64"), "t": fl.Stream(dtype="str")},
}


def rows_of(minibatch):
    names = list(minibatch.schema)
    return list(zip(minibatch.ids.tolist(), *(minibatch[name].sequences() for name in names), strict=True))


def plain(rows):
    return [tuple(v.tolist() if isinstance(v, np.ndarray) else v for v in row) for row in rows]


@settings(max_examples=examples(6))
@given(
    name=st.sampled_from(sorted(STREAMS)),
    budget=st.sampled_from([256 * KIB, 400 * KIB, 700 * KIB, 1 << 30]),
    window=st.integers(1, 9),
    by_bytes=st.booleans(),
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3)), min_size=1, max_size=8),
    ahead=st.sampled_from([0, 64 * KIB, None]),
    faults=st.lists(st.sampled_from(FAULTS), max_size=2),
    data=st.data(),
)
def test_stopped_and_continued_it_delivers_what_a_disk_does(
    world, name, budget, window, by_bytes, sizes, ahead, faults, data
):
    store, folder = world
    if name in ("arrow", "mapped"):
        budget += 900 * KIB  # the offsets of its sequences stay in the cache
    shuffle = fl.Window(bytes=window * 40_000) if by_bytes else fl.Window(chunks=window)
    options = {"seed": 5, "shuffle": shuffle, "max_sweeps": 2, "on_error": fl.Quarantine()}
    with fl.MinibatchSource(fl.open_corpus(folder / name, streams=STREAMS[name]), **options) as source:
        expected = [row for minibatch in source.minibatches(11) for row in plain(rows_of(minibatch))]
    store.heal()
    for fault in faults:
        store.fail(**fault, key=f"b/{name}/*", request="GET")
    got, state = [], None
    with tempfile.TemporaryDirectory() as cache:
        sizes = iter([*sizes, *[(40, 1)] * 100])
        while True:
            corpus = fl.open_corpus(
                f"s3://b/{name}",
                streams=STREAMS[name],
                remote=fl.Remote(cache=Path(cache) / "c", cache_bytes=budget, storage_options=store.s3()),
            )
            with fl.MinibatchSource(corpus, read_ahead=ahead, **options) as source:
                if state is not None:
                    source.load_state_dict(state)
                ended = False
                for _ in range(data.draw(st.integers(1, 6), label="minibatches until it is stopped")):
                    size, ranks = next(sizes)
                    before = source.state_dict()
                    parts = []
                    for rank in range(ranks):
                        source.load_state_dict(before)
                        minibatch = source.next_minibatch(size, partition=(rank, ranks))
                        ended = not minibatch
                        parts += [] if ended else plain(rows_of(minibatch))
                    got += parts
                    if ended:
                        break
                state = source.state_dict()
                assert corpus.placeholders.cache.kept_bytes <= budget
            if ended:
                break
    assert got == expected
