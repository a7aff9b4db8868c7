"""Mapped formats with files larger than the cache: chunks come from ranges, and equal those of the mapped files."""

from __future__ import annotations

import gc
import pickle
import shutil

import numpy as np
import pytest

import feedline as fl
from feedline.feed.fetch_plan import Cluster, fetch_plan
from feedline.feed.files.remote import object_at
from feedline.feed.remote import object_cache as caches
from feedline.feed.remote.pages import PAGE_BYTES
from tests.feed.remote.conftest import delivered, plain

KIB = 1 << 10


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    monkeypatch.setattr(caches, "MIN_CACHE_BYTES", 0)


def streams(seed: int = 1, rows: int = 900) -> dict:
    """Every kind of stream that a store has: scalars, vectors, bools, sparse rows, texts, and ragged ones of each."""
    import scipy.sparse as sp

    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 9, rows)
    return {
        "y": np.arange(rows),
        "x": rng.normal(size=(rows, 3, 50)).astype(np.float32),
        "yes": rng.random(rows) < 0.5,
        "tokens": [rng.integers(0, 99, n).astype(np.int32) for n in lengths],
        "steps": [rng.normal(size=(n, 4)) for n in lengths],
        "sparse": sp.random(rows, 1000, 0.05, "csr", np.float32, rng=rng),
        "picture": [rng.bytes(int(n)) for n in rng.integers(0, 3000, rows)],
        "texts": [["wörter " * int(n)] * int(n % 3) for n in lengths],
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A store of several files and chunks."""
    folder = tmp_path_factory.mktemp("written") / "s"
    fl.convert(fl.ArrayDeserializer(streams()), folder, chunk_bytes=200 * KIB, part_bytes=900 * KIB, shuffle=None)
    return folder


@pytest.fixture
def local(store, written, tmp_path):
    """The store, here and in the bucket."""
    shutil.copytree(written, tmp_path / "s")
    for file in (tmp_path / "s").iterdir():
        store.put(f"b/s/{file.name}", file.read_bytes())
    return fl.open_corpus(tmp_path / "s")


def total(local) -> int:
    return sum(info.bytes for info in local.chunks())


def rows(value) -> list:
    return [np.asarray(one.todense() if hasattr(one, "todense") else one).tolist() for one in value.sequences()]


ORDERS = [
    {"shuffle": fl.Window(bytes=600 * KIB)},
    {"shuffle": fl.Window(samples=250)},
    {"shuffle": fl.Window(chunks=3)},
    {"shuffle": False},
    {"shuffle": fl.Window(bytes=600 * KIB), "order": fl.Arcs(4)},
    {"shuffle": fl.Window(chunks=4), "order": "feedline-1", "read_ahead": 0},
]


CHOSEN = (None, ["picture", "y"], ["sparse", "tokens"])


@pytest.mark.parametrize(
    ("how", "names"),
    # All streams in each order, and each choice in every other one.
    [(how, names) for k, how in enumerate(ORDERS) for names in (None, CHOSEN[1 + k % 2])],
    ids=str,
)
def test_windows_match_a_mapped_store(local, opened, how, names, tmp_path):
    declared = {} if names is None else {name: local.schema[name] for name in names}
    here = fl.open_corpus(tmp_path / "s", streams=declared)
    there = opened("s", cache_bytes=total(local) // 2, **declared)
    assert all(object_at(path) is not None for path in there.paths())
    assert there.digest() == here.digest()
    assert delivered(there, size=40, **how) == delivered(here, size=40, **how)
    assert there.placeholders.cache.kept_bytes <= total(local) // 2


def test_only_the_streams_that_are_read_are_fetched(local, opened, store):
    there = opened("s", cache_bytes=total(local) // 2, x=local.schema["x"])
    store.reset()
    delivered(there, size=40, shuffle=fl.Window(bytes=600 * KIB), max_sweeps=1)
    assert 0 < store.counters().sent_bytes["GET"] <= 2 * streams()["x"].nbytes < total(local) / 2


def test_states_and_ranks_match_a_mapped_store(local, opened):
    how = {"shuffle": fl.Window(bytes=600 * KIB), "seed": 4, "max_sweeps": 2}
    there = opened("s", cache_bytes=total(local) // 2)
    with fl.MinibatchSource(local, **how) as here, fl.MinibatchSource(there, **how) as far:
        state = here.state_dict()
        for k in range(10):  # more than both sweeps have
            got = []
            for rank in range(3):
                far.load_state_dict(state)
                got += far.next_minibatch(190, partition=(rank, 3)).ids.tolist()
            assert got == here.next_minibatch(190).ids.tolist()
            state = far.state_dict() if k % 2 else here.state_dict()
            here.load_state_dict(state)


def test_a_whole_shuffle_fetches_all_or_suggests_a_remedy(local, opened, store, tmp_path):
    there = opened("s", cache_bytes=total(local) // 2)
    with pytest.raises(
        fl.DataError,
        match=r"room for all \d+ bytes of .*shuffled as a whole(.|\n)*cache_bytes of (.|\n)*fl.Window",
    ):
        fl.MinibatchSource(there)
    there.close()
    there = opened("s", cache=tmp_path / "roomy")
    expected = delivered(local)
    with fl.MinibatchSource(there, seed=3, max_sweeps=2) as source:
        assert any(object_at(path) is not None for path in there.paths())  # nothing is fetched before it is needed
        assert [plain(minibatch) for minibatch in source.minibatches(7)] == expected
        assert not any(object_at(path) is not None for path in there.paths())
    store.reset()
    again = opened("s", cache=tmp_path / "roomy")  # mapped at once, as all of it is there
    assert not any(object_at(path) is not None for path in again.paths())
    assert delivered(again) == expected
    assert store.counters().sent_bytes["GET"] == 0


def test_chunks_are_read_by_themselves(local, opened):
    there = opened("s", cache_bytes=total(local) // 2)
    for chunk in range(len(local.chunks())):
        for got, wanted in (
            (there.read(chunk), local.read(chunk)),
            (there.read_slice(chunk, 3, 17), local.read_slice(chunk, 3, 17)),
        ):
            for name in local.schema:
                assert rows(got.values[name]) == rows(wanted.values[name])
    ordinals = np.array([5, 899, 17, 400, 5])
    got, wanted = there.select(ordinals), local.select(ordinals)
    assert all(rows(got.values[name]) == rows(wanted.values[name]) for name in local.schema)
    copy = pickle.loads(pickle.dumps(there))
    assert delivered(copy, shuffle=False, max_sweeps=1) == delivered(local, shuffle=False, max_sweeps=1)
    copy.close()


def test_mixtures_concatenations_and_joins(local, opened, tmp_path):
    there = opened("s", cache_bytes=total(local) // 2)
    more = fl.ArrayDeserializer(streams(2, 50))
    how = {"shuffle": fl.Window(bytes=600 * KIB), "size": 40, "max_sweeps": 1}
    assert delivered(fl.Concat(there, more), **how) == delivered(fl.Concat(local, more), **how)
    for shuffle in (fl.Window(bytes=600 * KIB), False):
        got = []
        for one in (opened("s", cache_bytes=total(local) // 2), fl.open_corpus(tmp_path / "s")):
            mixture = fl.Mixture(
                {"a": one, "b": fl.ArrayDeserializer(streams(2, 50))},
                {"a": 0.7, "b": 0.3},
                when_empty="drop",
                max_sweeps=1,
            )
            got.append(delivered(mixture, **{**how, "shuffle": shuffle}))
        assert got[0] == got[1]
    keyed = fl.ArrayDeserializer({"z": np.arange(900.0)})
    got = [
        delivered(fl.Join(first, one), size=40, shuffle=fl.Window(chunks=2), max_sweeps=1)
        for first, one in ((keyed, opened("s", cache_bytes=total(local) // 2)), (keyed, fl.open_corpus(tmp_path / "s")))
    ]
    assert got[0] == got[1]


def write_arrays(folder):
    """A folder of arrays: of numbers in both orders, of bools, and of texts, which are loaded."""
    folder.mkdir()
    rng = np.random.default_rng(7)
    np.save(folder / "x.npy", rng.normal(size=(3000, 40)))
    np.save(folder / "f.npy", np.asfortranarray(rng.normal(size=(3000, 30)).astype(np.float32)))
    np.save(folder / "b.npy", rng.random(3000) < 0.5)
    np.save(folder / "t.npy", np.array([f"word{i}" for i in range(3000)]))
    np.save(folder / "y.npy", np.arange(3000))
    return {}


def write_tokens(folder):
    """Write token files of both kinds, with rows that cross pages."""
    folder.mkdir()
    rng = np.random.default_rng(8)
    for number, size in enumerate((300_000, 1000, 500_001)):
        rng.integers(0, 60_000, size).astype(np.uint16).tofile(folder / f"{number}.bin")
    return {"tokens": fl.Stream(100, "uint16")}


def write_hdf5(folder):
    """Datasets that are mapped."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    folder.mkdir()
    rng = np.random.default_rng(9)
    for number in range(2):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["x"] = rng.normal(size=(1500, 40))
            file["y"] = np.arange(1500)
    return {}


def write_hdf5_blocks(folder):
    """Datasets in blocks, and in heaps."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    folder.mkdir()
    rng = np.random.default_rng(9)
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=rng.normal(size=(1500, 40)), chunks=(100, 40), compression="gzip")
        file["t"] = [f"word{i}" for i in range(1500)]
        ragged = file.create_dataset("r", (1500,), h5py.vlen_dtype(np.int32))
        for i in range(1500):
            ragged[i] = np.arange(i % 5)
    return {}


def write_dense_cbf(folder):
    """Sequences of one dense sample, which are views of a mapped file. Reading one reads all of its chunk."""
    folder.mkdir()
    rng = np.random.default_rng(10)
    for number in range(2):
        corpus = fl.ArrayDeserializer(x=rng.normal(size=(1500, 40)), y=np.arange(1500.0, dtype=np.float32))
        fl.write_cbf(folder / f"{number}.cbf", corpus, chunk_size=60 * KIB)
    return {}


@pytest.mark.parametrize("write", [write_arrays, write_tokens, write_hdf5, write_hdf5_blocks, write_dense_cbf])
@pytest.mark.parametrize("how", ORDERS, ids=str)
def test_files_of_numbers(write, how, store, opened, tmp_path):
    declared = write(tmp_path / "n")
    suffix = next((tmp_path / "n").iterdir()).suffix
    what = "n" if suffix == ".npy" else f"n/*{suffix}"
    for file in (tmp_path / "n").iterdir():
        store.put(f"b/n/{file.name}", file.read_bytes())
    size = sum(file.stat().st_size for file in (tmp_path / "n").iterdir())
    here = fl.open_corpus(tmp_path / what, streams=declared)
    there = opened(what, cache_bytes=size // 2, **declared)
    assert there.digest() == here.digest()
    assert delivered(there, size=400, **how) == delivered(here, size=400, **how)
    assert there.placeholders.cache.kept_bytes <= size // 2


@pytest.mark.parametrize("share", [0.5, 0.7, 2])
def test_what_is_planned_is_what_is_fetched(local, opened, share, tmp_path):
    budget = int(share * total(local))
    how = {"shuffle": fl.Window(bytes=600 * KIB), "seed": 3, "max_sweeps": 3}
    first = opened("s", cache_bytes=budget, cache=tmp_path / "plan")
    plan = fetch_plan(
        first, Cluster(cache_bytes=budget), size=40, kept=first.placeholders.cache.kept_pages(), sweeps=3, **how
    )
    with fl.MinibatchSource(opened("s", cache_bytes=budget), **how) as source:
        for _ in source.minibatches(40):
            pass
        fetched, planned = source.stats().fetched_bytes, sum(one.bytes for one in plan.asked.sweeps)
        # A page that two chunks share is not dropped while the other chunk is being read.
        assert planned - 2 * PAGE_BYTES <= fetched <= planned
    assert plan.asked.peak_bytes <= budget


def test_the_plan_of_a_whole_shuffle_fetches_nothing(local, opened, store):
    there = opened("s")
    store.reset()
    plan = fetch_plan(there, Cluster(nodes=2, cache_bytes=1 << 30), size=40, kept=there.placeholders.cache.kept_pages())
    assert "shuffled as a whole is fetched whole" in plan.no_other
    assert plan.asked.smallest_cache_bytes >= total(local)
    assert store.counters().sent_bytes["GET"] == 0
    with fl.MinibatchSource(there) as source:
        source.state_dict()
        assert store.counters().sent_bytes["GET"] == 0
        source.next_minibatch(1)
    assert plan.asked.first_window.bytes == store.counters().sent_bytes["GET"] == plan.asked.cluster[0].bytes / 2


def test_a_cache_without_room_for_bounds_is_refused_with_a_figure(local, opened, monkeypatch):
    with pytest.raises(fl.DataError, match=r"room for the \d+ bytes of offsets of the sequences in 8 streams") as e:
        opened("s", cache_bytes=64 * KIB)
    enough = int(str(e.value).split("cache_bytes of fl.Remote to ")[1].split(",")[0])
    assert delivered(opened("s", cache_bytes=enough), shuffle=False) == delivered(local, shuffle=False)


def test_files_with_mapped_and_other_arrays_are_fetched_whole(store, opened, tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    rng = np.random.default_rng(9)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=rng.normal(size=(1500, 40)), chunks=(100, 40))
        file["y"] = rng.normal(size=(1500, 40))
    store.put("b/a.h5", (tmp_path / "a.h5").read_bytes())
    how = {"shuffle": fl.Window(bytes=100 * KIB), "max_sweeps": 1}
    assert delivered(opened("a.h5"), **how) == delivered(fl.open_corpus(tmp_path / "a.h5"), **how)
    with pytest.raises(fl.DataError, match="room for all"):
        opened("a.h5", cache=tmp_path / "small", cache_bytes=500 * KIB)


WINDOWS = {"shuffle": fl.Window(bytes=600 * KIB), "size": 40, "max_sweeps": 1}


@pytest.mark.parametrize("form", ["store", "arrays"])
def test_corpora_over_the_same_objects_do_not_end_each_other(local, opened, store, tmp_path, form):
    """When one is closed or collected, others keep their files, as an unknown path would be taken for a local file."""
    write_arrays(tmp_path / "n")
    for file in (tmp_path / "n").iterdir():
        store.put(f"b/n/{file.name}", file.read_bytes())
    name, here = ("s", local) if form == "store" else ("n", fl.open_corpus(tmp_path / "n"))
    expected = delivered(here, **WINDOWS)
    half = total(local) // 2 if form == "store" else 800 * KIB
    there = opened(name, cache_bytes=half)
    opened(name, cache_bytes=half).close()
    pickle.loads(pickle.dumps(there))  # and dropped
    opened(f"{name}/", cache_bytes=half).close()
    gc.collect()
    with fl.MinibatchSource(there, seed=3, **{k: v for k, v in WINDOWS.items() if k != "size"}) as source:
        got = [plain(source.next_minibatch(40))]
        opened(name, cache_bytes=half).close()
        got += [plain(minibatch) for minibatch in source.minibatches(40)]
    assert got == expected
    for read in (lambda: there.read(0), lambda: there.read_slice(0, 1, 2), lambda: there.select(np.arange(3))):
        with pytest.raises(ValueError, match="closed"):
            read()


def test_a_verified_corpus_that_is_closed_leaves_the_first_one_its_objects(local, opened):
    there = opened("s")
    there.verified().close()
    assert there.placeholders.cache._objects
    assert delivered(there, **WINDOWS) == delivered(local, **WINDOWS)


@pytest.mark.parametrize("shuffle", [fl.Window(bytes=600 * KIB), fl.Window(samples=300), fl.Window(chunks=2), False])
def test_chosen_sequences(local, opened, tmp_path, shuffle):
    how = WINDOWS | {"shuffle": shuffle}
    for choose in (
        lambda corpus: fl.Filtered(corpus, np.arange(900) % 3 != 0),
        lambda corpus: fl.Take(corpus, 17, 300),
    ):
        there = opened("s", cache_bytes=total(local) // 2)
        assert delivered(choose(there), **how) == delivered(choose(fl.open_corpus(tmp_path / "s")), **how)


def test_batches_of_like_length_in_order_do_not_depend_on_the_cache(local, opened, tmp_path):
    """They are made within windows, which must equal those of a disk for any content of the cache."""
    how = {"shuffle": False, "max_sweeps": 1}

    def batches(corpus):
        with fl.MinibatchSource(fl.Bucketed(corpus, [2, 4, 6], budget=40), **how) as source:
            return [plain(minibatch) for minibatch in source.minibatches(40)]

    expected = batches(local)
    assert batches(opened("s")) == batches(opened("s")) == expected
    with pytest.raises(fl.DataError, match="room for all"):
        batches(opened("s", cache=tmp_path / "small", cache_bytes=total(local) // 2))


def test_a_mixture_that_is_described_next_to_its_stores(local, opened, store, tmp_path):
    text = "mixture:\n  a: s\n  b: {path: s, take: 300}\nweights: {a: 0.7, b: 0.3}\nwhen_empty: drop\nmax_sweeps: 1\n"
    store.put("b/mix.yaml", text.encode())
    (tmp_path / "mix.yaml").write_text(text)
    how = {"shuffle": fl.Window(bytes=600 * KIB), "max_sweeps": 1}
    there = opened("mix.yaml", cache_bytes=2 * total(local))
    assert delivered(there, **how) == delivered(fl.open_corpus(tmp_path / "mix.yaml"), **how)


def test_a_loader_takes_a_window(local, opened):
    there = opened("s", cache_bytes=total(local) // 2)
    with pytest.raises(fl.DataError, match="room for all"):
        next(iter(fl.DataLoader(there, batch_size=50, shuffle=True, seed=1)))
    got, wanted = (
        [batch["y"].tolist() for batch in fl.DataLoader(one, batch_size=50, shuffle=WINDOWS["shuffle"], seed=1)]
        for one in (opened("s", cache_bytes=total(local) // 2), local)
    )
    assert got == wanted
    with pytest.raises(ValueError, match=r"shuffle=True or False for a dataset, got Window"):
        fl.DataLoader([1, 2, 3], shuffle=fl.Window(chunks=1))


def test_the_digest_of_arrays_survives_the_cache(opened, store, tmp_path):
    write_arrays(tmp_path / "n")
    for file in (tmp_path / "n").iterdir():
        store.put(f"b/n/{file.name}", file.read_bytes())
    there = opened("n", cache_bytes=800 * KIB)
    shutil.rmtree(tmp_path / "cache")
    assert there.digest() == fl.open_corpus(tmp_path / "n").digest()


def test_verified_reads_compare_checksums_of_what_is_fetched_whole(local, opened, store, tmp_path):
    path = next((tmp_path / "s").glob("*.arrow"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    store.put(f"b/s/{path.name}", bytes(data))
    with pytest.raises(fl.DataError, match=r"room for all .*with checksums of whole chunks"):
        opened("s", cache_bytes=total(local) // 2).verified()
    with pytest.raises(fl.DataError, match="checksum"):
        delivered(opened("s", cache=tmp_path / "roomy").verified(), shuffle=False)
