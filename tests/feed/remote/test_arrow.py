"""Arrow files that are larger than the cache: batches come from ranges, and equal those of the mapped files."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from feedline.feed.fetch_plan import Cluster, fetch_plan
from feedline.feed.files import remote
from feedline.feed.files.remote import object_at
from feedline.feed.remote import object_cache as caches
from feedline.feed.remote.pages import PAGE_BYTES
from tests.feed.formats.test_arrow import table_of, write
from tests.feed.remote.conftest import delivered
from tests.feed.remote.test_views import ORDERS
from tests.inside import files_of

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

KIB = 1 << 10
ROWS = 750


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    monkeypatch.setattr(caches, "MIN_CACHE_BYTES", 0)
    monkeypatch.setattr(remote, "_NEARBY", 16 * KIB)  # else the walk over the heads fetches all of files so small


@functools.cache
def table():
    """Every kind of column, nulls and lists of unequal lengths included, and one that takes most of the room."""
    rng = np.random.default_rng(3)
    made = pa.concat_tables([table_of(ROWS // 3)[0]] * 3)
    uneven = [[1.0, 2.0]] * ROWS
    uneven[77], uneven[500] = [1.0], None
    return (
        made.append_column("maybe", pa.array([None if i % 50 == 3 else i for i in range(ROWS)]))
        .append_column("pair", pa.array(uneven))
        .append_column("entries", pa.array([[{"i": i % 9, "v": 1.5}] * (i % 3) for i in range(ROWS)], ENTRIES))
        .append_column("wide", pa.array([None if i % 9 == 4 else [float(i)] * 512 for i in range(ROWS)], WIDE))
        .append_column("talk", pa.array([None if i % 7 == 2 else talk(i) for i in range(ROWS)], TALK))
        .append_column("picture", pa.array([rng.bytes(int(n)) for n in rng.integers(0, 30_000, ROWS)]))
    )


def talk(i):
    """A struct with a list of structs, some of which are null."""
    return {"turns": [None if (i + k) % 11 == 3 else {"who": k, "says": f"{i} {k}"} for k in range(i % 4)], "id": i}


WIDE = pa.list_(pa.float32(), 512)  # whose numbers are far from the bits that say which are null
TURN = pa.struct([("who", pa.int8()), ("says", pa.string())])
TALK = pa.struct([("turns", pa.list_(TURN)), ("id", pa.int64())])
NESTED = {
    "id": fl.Stream((), "int64", field="talk.id", missing=-1),
    "who": fl.Stream((), "int8", field="talk.turns[].who", missing=7, mask=True),
    "says": fl.Stream(dtype="str", field="talk.turns[].says"),
    "all": fl.Stream(dtype="bytes", field="talk", missing=b"-"),
    "wide": fl.Stream(512, missing=-5),
}
ENTRIES = pa.list_(pa.struct([("i", pa.int64()), ("v", pa.float32())]))
DECLARED = {
    name: fl.Stream((2,), "float64") if name == "pair" else fl.Stream(9, "float32", sparse=True)
    for name in ("pair", "entries")
}


def put(store, folder, kind="stream"):
    """Three files, here and in the bucket."""
    folder.mkdir()
    options = {"compression": "zstd"} if kind == "zstd" else {}
    whole = table()
    if kind == "dictionary":
        whole = whole.append_column("code", pa.array([f"w{i % 7}" for i in range(ROWS)]).dictionary_encode())
    for i in range(3):
        part = whole.slice(ROWS // 3 * i, ROWS // 3)
        path = write(folder / f"{i}.arrow", part, kind="file" if kind == "file" else "stream", rows=50, **options)
        store.put(f"b/{folder.name}/{i}.arrow", Path(path).read_bytes())
    return sum(file.stat().st_size for file in folder.iterdir())


@pytest.fixture
def arrow(store, opened, tmp_path):
    """Open the files of a kind, here and there, with half of them in the cache."""

    def both(kind="stream", share=0.5, **more):
        size = put(store, tmp_path / "a", kind)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # columns that are no streams by themselves
            here = fl.open_corpus(tmp_path / "a", streams=more)
            there = opened("a", cache_bytes=int(share * size), **more)
        return here, there, size

    return both


KINDS = ("stream", "file", "zstd", "dictionary")


@pytest.mark.parametrize(
    ("how", "kind"),
    # Each order with two kinds, each kind in three orders.
    [(how, KINDS[(2 * k + more) % 4]) for k, how in enumerate(ORDERS) for more in range(2)],
    ids=str,
)
def test_minibatches_equal_a_disk(arrow, kind, how):
    here, there, size = arrow(kind)
    assert there.digest() == here.digest()
    assert any(object_at(path) is not None for path in there.paths())  # nothing was fetched as a whole
    assert delivered(there, size=40, on_error=fl.Quarantine(), **how) == delivered(
        here, size=40, on_error=fl.Quarantine(), **how
    )
    assert there.placeholders.cache.kept_bytes <= size // 2


@pytest.mark.parametrize(
    "chosen",
    [
        {"pair": DECLARED["pair"]},
        {"entries": DECLARED["entries"]},
        *({"n": fl.Stream((), "int64"), name: stream} for name, stream in NESTED.items()),
        NESTED,
    ],
    ids=lambda chosen: "+".join(chosen),
)
def test_columns_that_are_copied_in_part(arrow, chosen):
    """Lists of unequal lengths, entries whose indices have another type, nulls that are filled, and structs: reading a
    chunk looks at the data."""
    here, there, _ = arrow(**chosen)
    for chunk in range(len(here.chunks())):
        assert there.read(chunk).errors.keys() == here.read(chunk).errors.keys()
    how = {"shuffle": fl.Window(chunks=3), "on_error": fl.Quarantine(), "size": 40}
    assert delivered(there, **how) == delivered(here, **how)


def test_only_the_columns_that_are_read_are_fetched(arrow, store):
    here, there, size = arrow(share=2, n=fl.Stream((), "int64"), l=fl.Stream((), "int64"))
    opening = store.counters().sent_bytes["GET"]
    extents = [one for chunk in range(len(there.chunks())) for one in there.extents(chunk)]
    assert sum(one.size for one in extents) < size / 20
    assert delivered(there, shuffle=fl.Window(chunks=4)) == delivered(here, shuffle=fl.Window(chunks=4))
    assert store.counters().sent_bytes["GET"] - opening < size / 2


def test_chunks_slices_and_selections(arrow):
    here, there, _ = arrow()
    for chunk in (0, 4, 5, 14):
        for got, wanted in (
            (there.read(chunk), here.read(chunk)),
            (there.read_slice(chunk, 3, 11), here.read_slice(chunk, 3, 11)),
        ):
            assert {name: value.tolist() for name, value in got.values.items()} == {
                name: value.tolist() for name, value in wanted.values.items()
            }
            assert got.errors.keys() == wanted.errors.keys()
    ordinals = np.array([5, 749, 17, 400, 5])
    got, wanted = there.select(ordinals), here.select(ordinals)
    assert [value.tolist() for value in got.values.values()] == [value.tolist() for value in wanted.values.values()]
    assert there.lengths(ordinals).tolist() == here.lengths(ordinals).tolist()


def test_a_whole_shuffle_maps_what_it_has_fetched(arrow, opened):
    here, there, _ = arrow(share=2)
    expected = delivered(here, on_error=fl.Quarantine())
    with fl.MinibatchSource(there, seed=3, max_sweeps=2, on_error=fl.Quarantine()) as source:
        assert any(object_at(path) is not None for path in there.paths())  # nothing is fetched before it is needed
        assert [minibatch.ids.tolist() for minibatch in source.minibatches(7)] == [ids for ids, _ in expected]
        assert not any(object_at(path) is not None for path in there.paths())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        again = opened("a")  # mapped at once, as all of it is there
    assert delivered(again, on_error=fl.Quarantine()) == expected


def test_what_is_planned_is_what_is_fetched(arrow, opened, tmp_path):
    how = {"shuffle": fl.Window(bytes=2000 * KIB), "seed": 3, "max_sweeps": 3, "on_error": fl.Quarantine()}
    _, first, size = arrow(share=0.7)
    budget = int(0.7 * size)
    planned = {name: how[name] for name in ("shuffle", "seed", "max_sweeps")}
    plan = fetch_plan(
        first, Cluster(cache_bytes=budget), size=40, kept=first.placeholders.cache.kept_pages(), sweeps=3, **planned
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        again = opened("a", cache_bytes=budget)
    with fl.MinibatchSource(again, **how) as source:
        for _ in source.minibatches(40):
            pass
        fetched, wanted = source.stats().fetched_bytes, sum(one.bytes for one in plan.asked.sweeps)
        # Two chunks may share a page, which is not dropped while one of them is being read.
        assert abs(fetched - wanted) <= len(first.chunks()) * PAGE_BYTES


def test_rows_that_indices_name_are_gathered_from_whole_files(store, opened, tmp_path):
    size = put(store, tmp_path / "a")
    order = np.random.default_rng(0).permutation(ROWS)[:300].astype(np.uint64)
    path = write(tmp_path / "indices.arrow", pa.table({"indices": order}), rows=50)
    (tmp_path / "a" / "indices.arrow").write_bytes(Path(path).read_bytes())
    state = {"_data_files": [{"filename": f"{i}.arrow"} for i in range(3)], "_indices_files": None}
    state |= {"_indices_data_files": [{"filename": "indices.arrow"}]}
    (tmp_path / "a" / "state.json").write_text(json.dumps(state))
    (tmp_path / "a" / "dataset_info.json").write_text("{}")
    for name in ("state.json", "dataset_info.json", "indices.arrow"):
        store.put(f"b/a/{name}", (tmp_path / "a" / name).read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        here, there = fl.open_corpus(tmp_path / "a"), opened("a")
        assert sum(info.sequences for info in here.chunks()) == 300
        assert delivered(there, on_error=fl.Quarantine()) == delivered(here, on_error=fl.Quarantine())
        assert not any(object_at(path) is not None for path in there.paths())
        with pytest.raises(fl.DataError, match=r"a cache with room for all \d+ bytes") as caught:
            opened("a", cache=tmp_path / "small", cache_bytes=size // 2)
        wanted = int(str(caught.value).split("raise the cache_bytes of fl.Remote to ")[1].split(",")[0])
        assert sum(info.sequences for info in opened("a", cache=tmp_path / "small", cache_bytes=wanted).chunks()) == 300


@pytest.mark.parametrize("at", ["in a head", "in a body", "at the end"])
def test_damage_matches_a_disk(store, opened, tmp_path, at):
    put(store, tmp_path / "a")
    path = tmp_path / "a" / "1.arrow"
    data = bytearray(path.read_bytes())
    start = int(files_of(fl.ArrowDeserializer(str(path), ["n"]))[0].starts[3])
    if at == "at the end":
        data = data[:-2000]
    else:
        place = start + (40 if at == "in a head" else 9000)
        data[place : place + 16] = b"\xff" * 16
    path.write_bytes(data)
    store.put("b/a/1.arrow", bytes(data))

    def outcome(open_it):
        try:
            corpus = open_it()
            return delivered(corpus, shuffle=fl.Window(chunks=3), on_error=fl.Quarantine())
        except fl.DataError as error:
            return str(error).replace(str(tmp_path / "a"), "s3://b/a").split("  ")[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        expected = outcome(lambda: fl.open_corpus(tmp_path / "a"))
        assert outcome(lambda: opened("a", cache_bytes=8 << 20)) == expected


def test_heads_of_small_batches_cost_one_pass(store, opened, tmp_path):
    """Opening reads ahead where batches are small, so that it does not wait for each of them."""
    table = pa.table({"x": np.arange(200_000)})
    (tmp_path / "a").mkdir()
    path = write(tmp_path / "a" / "0.arrow", table, rows=100)
    store.put("b/a/0.arrow", Path(path).read_bytes())
    size = (tmp_path / "a" / "0.arrow").stat().st_size
    there = opened("a")
    there.chunks()
    assert len(there.chunks()) == 2000
    counters = store.counters()
    assert counters.sent_bytes["GET"] <= size
    assert counters.requests["GET"] <= 8


def test_damaged_bounds_of_one_batch_lose_its_sequences_alone(store, opened, tmp_path):
    (tmp_path / "a").mkdir()
    table = pa.table({"v": [[1.0, 2.0]] * 200, "n": range(200)})
    path = Path(write(tmp_path / "a" / "0.arrow", table, rows=100))
    data = bytearray(path.read_bytes())
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        bounds = stream.read_next_batch().column("v").buffers()[1].to_pybytes()
    at = data.index(bounds[:404])
    data[at + 40 : at + 44] = (1 << 20).to_bytes(4, "little")
    path.write_bytes(data)
    store.put("b/a/0.arrow", bytes(data))
    declared = {"v": fl.Stream((2,), "float64"), "n": fl.Stream((), "int64")}
    here, there = fl.open_corpus(tmp_path / "a", streams=declared), opened("a", **declared)
    assert len(here.read(0).errors) == 100
    for chunk in range(2):
        assert there.read(chunk).errors.keys() == here.read(chunk).errors.keys()
    how = {"shuffle": False, "on_error": fl.Quarantine()}
    assert delivered(there, **how) == delivered(here, **how)


def test_many_files_take_no_more_room_than_is_looked_at(store, opened, tmp_path):
    """With numbers alone, nothing stays in the cache. With lists of unequal lengths all offsets do, and an error has
    their size."""
    for i in range(20):
        table = pa.table({"n": np.arange(40_000), "v": pa.array([[1.0, 2.0]] * 9999 + [[1.0]] + [None] * 30_000)})
        store.put(f"b/a/{i}.arrow", Path(write(tmp_path / f"{i}.arrow", table, rows=10_000)).read_bytes())
    there = opened("a", cache_bytes=1 << 20, n=fl.Stream((), "int64"))
    assert [len(ids) for ids, _ in delivered(there, size=50_000, shuffle=fl.Window(chunks=2), max_sweeps=1)] == [
        50_000
    ] * 16
    with pytest.raises(fl.DataError, match=r"room for the \d+ bytes(.|\n)*raise the cache_bytes of fl.Remote to \d+"):
        opened("a", cache=tmp_path / "other", cache_bytes=1 << 20, v=fl.Stream((2,), "float64"))
