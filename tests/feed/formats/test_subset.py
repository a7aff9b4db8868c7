"""Parts of corpora, and corpora one after the other: the laws of any corpus, over any corpus."""

from __future__ import annotations

import io
import itertools
import tarfile
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.composed.skipping import lists
from feedline.feed.protocol import can, keys_of, read_slice
from feedline.feed.timeline import block_order
from feedline.testing import assert_resumes, sequences_of
from tests.laws.corpora import CountedCorpus

COUNT = 60


class Picked(fl.Deserializer, fl.RandomAccess, fl.Sliceable):
    """What a choice of sequences has to be, sequence by sequence: its twin."""

    def __init__(self, corpus, originals):
        self.schema, self.name = corpus.schema, corpus.name
        self._corpus, self._of = corpus, np.array(originals, np.int64)
        starts = np.cumsum([0, *(info.sequences for info in corpus.chunks())])
        self._groups, self._infos = [], []
        for info, (a, b) in zip(corpus.chunks(), itertools.pairwise(starts), strict=True):
            here = [int(o) for o in self._of if a <= o < b]
            if here:
                samples = sum(self._samples(here))
                part, whole = (samples, info.samples) if samples else (len(here), info.sequences)
                self._groups.append(here)
                self._infos.append(fl.ChunkInfo(len(here), samples, -(-info.bytes * part // whole)))

    def capability(self, kind):
        return None if self._corpus.capability(kind) is None else super().capability(kind)

    def read_slice(self, chunk, start, stop):
        return self.read(chunk).slice(start, stop)

    def _samples(self, originals):
        lengths = self._corpus.lengths(np.array(originals, np.int64))
        return [1] * len(originals) if lengths is None else lengths.tolist()

    def chunks(self):
        return self._infos

    def read(self, chunk):
        return self._corpus.select(np.array(self._groups[chunk]))

    def lengths(self, ordinals):
        return self._corpus.lengths(self._of[ordinals])

    def digest(self):
        return "00"


@st.composite
def choices(draw):
    """A corpus of up to 60 ragged sequences, and some of them."""
    sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any))
    total = sum(sizes)
    lengths = draw(st.lists(st.integers(0, 4), min_size=total, max_size=total).filter(any))
    access, sliceable = draw(st.booleans()), draw(st.booleans())
    bad = draw(st.sets(st.integers(0, total - 1), max_size=3))
    kind = draw(st.sampled_from(["run", "any"]))
    if kind == "run":
        a, b = sorted((draw(st.integers(0, total - 1)), draw(st.integers(1, total))))
        which = np.arange(a, max(b, a + 1))
    else:
        which = np.array(sorted(draw(st.sets(st.integers(0, total - 1), min_size=1))))

    def corpus(unreadable=()):
        return CountedCorpus(lengths, sizes, access, unreadable, sliceable=sliceable)

    return corpus, which, bad


def everything(corpus):
    """Every sequence of a corpus, by chunks."""
    return [item for k in range(len(corpus.chunks())) for item in values_of(corpus.read(k))]


def values_of(chunk):
    """The sequences of a chunk, as flat lists."""
    columns = [(value.dense() if value.is_sparse else value).tolist() for value in chunk.values.values()]
    return [tuple(np.ravel(one).tolist() for one in row) for row in zip(*columns, strict=True)]


@given(choices(), st.data())
def test_a_choice_has_the_sequences_chosen_whichever_way_it_is_read(choice, data):
    make, which, bad = choice
    corpus, plain = make(bad), make()
    part = fl.Filtered(corpus, which)
    wanted = [values_of(plain.select(np.array([o])))[0] for o in which]
    infos, at = part.chunks(), 0
    assert len(part.chunks()) == len(infos)
    for k, info in enumerate(infos):
        ordinals = np.arange(at, at + info.sequences)
        lengths = part.lengths(ordinals)
        assert info.samples == (info.sequences if lengths is None else lengths.sum())
        a, b = sorted(data.draw(st.tuples(*[st.integers(0, info.sequences)] * 2)))
        for start, stop, found in ((0, info.sequences, part.read(k)), (a, b, read_slice(part, k, a, b))):
            assert values_of(found) == wanted[at + start : at + stop]
            assert {int(which[at + start + i]): error.sequence for i, error in found.errors.items()} == {
                int(o): o for o in which[at + start : at + stop] if o in bad
            }
        if (views := part.capability(fl.RandomAccess)) is not None:
            held, index = views.view(k, a, b)
            index = np.arange(b - a) if index is None else index
            assert [values_of(held)[i] for i in index] == wanted[at + a : at + b]
            unreadable = {int(which[at + a + j]) for j, i in enumerate(index) if i in held.errors}
            assert unreadable == bad & set(which[at + a : at + b])
        at += info.sequences
    assert at == len(which)
    some = np.array(data.draw(st.lists(st.integers(0, len(which) - 1), min_size=1, max_size=5)))
    assert values_of(part.select(some)) == [wanted[i] for i in some]
    assert keys_of(part, some).tolist() == which[some].tolist() == part.original(some).tolist()


@given(choices(), st.integers(1, 20), st.sampled_from([True, False, fl.Window(chunks=2), fl.Window(bytes=200)]))
def test_a_choice_is_delivered_like_a_corpus_that_has_nothing_else(choice, size, shuffle):
    make, which, _ = choice
    part, twin = fl.Filtered(make(), which), Picked(make(), which)
    assert list(part.chunks()) == twin.chunks()
    found, wanted = ([], [])
    for corpus, out in ((part, found), (twin, wanted)):
        with mock.patch.object(block_order, "BLOCK_BYTES", 40):
            source = fl.MinibatchSource(corpus, seed=5, max_sweeps=2, shuffle=shuffle)
        with source:
            minibatches = list(source.minibatches(size))
            out += sequences_of(minibatches)
        for minibatch in minibatches:
            lengths = minibatch["x"].lengths
            assert minibatch["x"].rows[:, 0].tolist() == np.repeat(which[minibatch.ids], lengths).tolist()
    assert found == wanted


@given(choices())
def test_only_sequences_chosen_can_fail(choice):
    make, which, bad = choice
    with fl.MinibatchSource(fl.Filtered(make(bad), which), max_sweeps=1, on_error="skip") as source:
        ids = [i for m in source.minibatches(7) for i in m.ids.tolist()]
        assert source.stats().skipped == len(bad & set(which.tolist()))
    assert sorted(ids) == [i for i, o in enumerate(which) if o not in bad]


def arrays(folder):
    return fl.ArrayDeserializer(x=np.arange(COUNT), chunk_sequences=9)


def mapped(folder):
    return fl.ArrayDeserializer(x=np.load(folder / "x.npy", mmap_mode="r"), chunk_sequences=9)


def store(folder):
    return fl.StoreDeserializer(folder / "store")


def parquet(folder):
    return fl.ParquetDeserializer(folder / "x.parquet")


def tar(folder):
    return fl.TarDeserializer([folder / "a.tar", folder / "b.tar"], x=fl.Stream((), "int64", field="cls"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """x = 0 .. 59 in every format."""
    folder = tmp_path_factory.mktemp("chosen")
    np.save(folder / "x.npy", np.arange(COUNT))
    fl.convert(arrays(folder), folder / "store")
    pq.write_table(pa.table({"x": pa.array(range(COUNT), pa.int64())}), folder / "x.parquet", row_group_size=9)
    for name, numbers in (("a.tar", range(25)), ("b.tar", range(25, COUNT))):
        with tarfile.open(folder / name, "w") as archive:
            for number in numbers:
                member, text = tarfile.TarInfo(f"{number:06}.cls"), str(number).encode()
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
    return folder


FORMATS = [arrays, mapped, store, parquet, tar]


def numbers(source, size=7):
    return [x for m in source.minibatches(size) for x in m["x"].rows.ravel().tolist()]


def third(corpus):
    return fl.Filtered(corpus, {"x": lambda x: x.ravel() % 3 == 0})


def nested(corpus):
    """15, 18, .., 42, then what of 30 .. 59 ends with 0 or 1."""
    late = fl.Filtered(fl.Take(corpus, 30, None), {"x": lambda x: x.ravel() % 10 < 2})
    return fl.Concat(fl.Take(third(corpus), 5, 15), late)


NESTED = [*range(15, 45, 3), 30, 31, 40, 41, 50, 51]

NESTS = {
    "run": (lambda c: fl.Take(c, 11, 47), [*range(11, 47)]),
    "filter": (third, [*range(0, COUNT, 3)]),
    "parts": (nested, NESTED),
    "filter of parts": (lambda c: fl.Filtered(nested(c), np.arange(0, 16, 2)), NESTED[::2]),
    "run of filter of parts": (lambda c: fl.Take(fl.Filtered(nested(c), np.arange(0, 16, 2)), -3, -1), [30, 40]),
}


@pytest.mark.parametrize("opened", FORMATS)
@pytest.mark.parametrize("nest", NESTS)
def test_parts_nest_over_every_format(opened, nest, files, tmp_path):
    """Delivered, resumed, converted, validated, and by a DataLoader."""
    make, wanted = NESTS[nest]
    assert_resumes(lambda: fl.MinibatchSource(make(opened(files)), seed=3), sizes=(4,), minibatches=2)
    for shuffle in (True, False, fl.Window(bytes=64)):
        with fl.MinibatchSource(make(opened(files)), max_sweeps=1, shuffle=shuffle) as source:
            found = numbers(source)
            assert (found if shuffle is False else sorted(found)) == (wanted if shuffle is False else sorted(wanted))
    part = make(opened(files))
    summary = fl.validate(part)
    assert (summary.sequences, summary.damaged) == (len(wanted), 0)
    fl.convert(part, tmp_path / "converted")
    converted = fl.StoreDeserializer(tmp_path / "converted")
    assert [x for k in range(len(converted.chunks())) for x in converted.read(k)["x"].rows.ravel().tolist()] == wanted
    loaded = [x for batch in fl.DataLoader(part, batch_size=4, shuffle=True) for x in np.ravel(batch["x"]).tolist()]
    assert sorted(loaded) == sorted(wanted)


@pytest.mark.parametrize("opened", FORMATS)
def test_a_mixture_of_parts_keeps_its_proportions(opened, files):
    """Two parts of one corpus, as a mixture: each is itself."""

    def mixture():
        corpus = opened(files)
        return fl.Mixture({"a": third(corpus), "b": fl.Take(corpus, 40, 50)}, {"a": 3, "b": 1}, block=4)

    with fl.MinibatchSource(mixture(), seed=2, max_samples=80) as source:
        given_by = [[], []]
        for minibatch in source.minibatches(8):
            for k, x in zip(minibatch.source.tolist(), minibatch["x"].rows.ravel().tolist(), strict=True):
                given_by[k].append(x)
    assert sorted(given_by[0]) == sorted([*range(0, COUNT, 3)] * 3)
    assert sorted(given_by[1]) == [x for x in range(40, 50) for _ in range(2)]
    assert_resumes(lambda: fl.MinibatchSource(mixture(), seed=2, read_ahead=0), sizes=(9,), minibatches=2)


def test_mapped_parts_stay_mapped(files):
    """A filter of mapped data is a view by index: nothing is held, and all of it is shuffled together."""
    for make, run in ((third, False), (lambda c: fl.Take(c, 3, 40), True)):
        part = make(store(files))
        assert can(part, fl.RandomAccess)
        assert part.in_runs is run
        with fl.MinibatchSource(part, max_sweeps=1, shuffle="whole") as source:
            assert len(numbers(source)) == sum(info.sequences for info in part.chunks())
            assert source.stats().peak_bytes == 0
    held, index = third(store(files)).view(0)
    assert not held["x"].rows.flags.writeable
    assert held.num_sequences == 58
    assert index.tolist() == [*range(0, COUNT, 3)]


def test_only_the_chunks_concerned_are_read():
    corpus = CountedCorpus([1] * 30, [10] * 3)
    with fl.MinibatchSource(fl.Take(corpus, 12, 18), max_sweeps=2) as source:
        assert len(numbers_of_first(source)) == 12
    assert set(corpus.reads) == {1}


def numbers_of_first(source):
    return [row[0] for m in source.minibatches(5) for row in m["x"].rows.tolist()]


def test_packed_rows_of_filtered_documents():
    """What is filtered out is in no row."""
    tokens = [np.full(n, 100 + n) for n in range(1, 30)]
    documents = fl.ArrayDeserializer(tokens=tokens)
    rows = fl.Packed(fl.Filtered(documents, lengths=(5, 20)), 32)
    with fl.MinibatchSource(rows, max_sweeps=1) as source:
        found = np.concatenate([m["tokens"].rows.ravel() for m in source.minibatches(64)])
    wanted = np.concatenate([one for one in tokens if 5 <= len(one) <= 20])
    assert sorted(found[found > 0]) == sorted(wanted)


def test_lengths_and_columns_hold_together():
    sequences = [np.zeros(n % 7) for n in range(COUNT)]
    kept = [n for n in range(COUNT) if 2 <= n % 7 <= 4 and n % 2 and n > 20]
    texts = ["odd" if n % 2 else "even" for n in range(COUNT)]
    corpus = fl.ArrayDeserializer(s=sequences, chunk_sequences=11)
    columns = fl.ArrayDeserializer(word=texts, n=np.arange(COUNT), chunk_sequences=17)
    where = {"word": lambda x: x == "odd", "n": lambda x: x > 20}
    part = fl.Filtered(corpus, where, lengths=(2, 4), columns=columns)
    assert part.original(np.arange(len(kept))).tolist() == kept
    assert fl.Filtered(corpus, lengths=(None, 3)).lengths(np.arange(4)).tolist() == [0, 1, 2, 3]
    assert fl.Filtered(corpus, lengths=(6, None)).original(np.array([0, 1])).tolist() == [6, 13]


def test_only_the_columns_named_are_read():
    class Unreadable(CountedCorpus):
        def read(self, chunk):
            raise AssertionError("the corpus was read to filter it")

    corpus = Unreadable([1] * 10, [4, 6])
    score = fl.ArrayDeserializer(score=np.linspace(0, 1, 10))
    assert len(fl.Filtered(corpus, {"score": lambda x: x > 0.5}, columns=score).original(np.arange(5))) == 5


def test_the_digest_matches_what_is_chosen():
    corpus = fl.ArrayDeserializer(x=np.arange(20))
    mask = np.arange(20) % 2 == 0
    same = [fl.Filtered(corpus, mask), fl.Filtered(corpus, np.flatnonzero(mask)[::-1])]
    same.append(fl.Filtered(corpus, {"x": lambda x: x % 2 == 0}))
    other = [corpus, fl.Filtered(corpus, ~mask), fl.Filtered(corpus, [0, 2, 4, 6, 8, 10, 12, 14, 17, 18])]
    runs = [fl.Take(corpus, 5), fl.Take(corpus, 5, 10), fl.Filtered(corpus, np.arange(6))]
    assert len({part.digest() for part in same}) == 1
    assert len({part.digest() for part in (same[0], *other, *runs)}) == 7
    assert fl.Take(corpus, 3, 9).digest() == fl.Filtered(corpus, np.arange(3, 9)).digest()


def test_a_state_of_another_choice_is_refused():
    corpus = fl.ArrayDeserializer(x=np.arange(20))
    state = fl.MinibatchSource(fl.Filtered(corpus, np.arange(0, 20, 2))).state_dict()
    fl.MinibatchSource(fl.Filtered(corpus, np.arange(20) % 2 == 0)).load_state_dict(state)
    with pytest.raises(fl.StateError, match="corpus"):
        fl.MinibatchSource(fl.Filtered(corpus, np.arange(1, 20, 2))).load_state_dict(state)


class Placeless(CountedCorpus):
    """A corpus whose errors have no place."""

    def made(self, a, b):
        chunk = super().made(a, b)
        return fl.Chunk(chunk.schema, chunk.values, dict.fromkeys(chunk.errors, fl.DataError("planted")))


@pytest.mark.parametrize("access", [True, False])
@pytest.mark.parametrize("which", [[3, 16, 17, 25], [16, 17, 18]])
def test_an_error_names_the_sequence_of_the_corpus(access, which):
    corpus = Placeless([1] * 30, [10] * 3, access, bad=[17], sliceable=True)
    with fl.MinibatchSource(fl.Filtered(corpus, which), shuffle=False) as source:
        with pytest.raises(fl.DataError, match="planted") as caught:
            source.next_minibatch(4)
        assert caught.value.sequence == 17
        assert caught.value.path == corpus.name


def test_a_filter_of_a_corpus_with_a_quarantine_list(tmp_path):
    """What is listed stays out, and the list is found below the filter."""
    listed = tmp_path / "list.jsonl"
    listed.write_text('{"sequence": 4}\n{"sequence": 8}\n')
    for access in (True, False):
        corpus = fl.Skipping(CountedCorpus([1] * 30, [10] * 3, access), listed)
        with fl.MinibatchSource(fl.Filtered(corpus, [2, 4, 6, 8, 29]), max_sweeps=1) as source:
            assert sorted(numbers_of_first(source)) == [2, 6, 29]
            assert [found.tolist() for found in lists(source.corpus)] == [[4, 8], []]
        part = fl.Filtered(CountedCorpus([1] * 30, [10] * 3, access), np.arange(0, 30, 2))
        with fl.MinibatchSource(part, max_sweeps=1, skip=listed) as source:
            assert sorted(numbers_of_first(source)) == [n for n in range(0, 30, 2) if n not in (8, 16)]


def test_parts_of_one_corpus_after_the_other_are_the_corpus():
    """Concat gives each its place: sources, keys and lengths too."""
    corpus = CountedCorpus([n % 4 for n in range(40)], [15, 10, 15])
    cuts = [0, 3, 15, 31, 40]
    joined = fl.Concat(*(fl.Take(corpus, a, b) for a, b in itertools.pairwise(cuts)))
    assert everything(joined) == everything(corpus)
    ordinals = np.arange(40)
    assert joined.lengths(ordinals).tolist() == corpus.lengths(ordinals).tolist()
    assert keys_of(joined, ordinals).tolist() == ordinals.tolist()
    assert joined.sources(ordinals).tolist() == [0] * 3 + [1] * 12 + [2] * 16 + [3] * 9
    assert values_of(joined.select(np.array([39, 0, 16]))) == values_of(corpus.select(np.array([39, 0, 16])))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda c: fl.Take(c, 21), IndexError, "stop of Take from -20 to 20"),
        (lambda c: fl.Take(c, -21, None), IndexError, "start of Take"),
        (lambda c: fl.Take(c), TypeError, "0 bounds"),
        (lambda c: fl.Take(c, 1.5), TypeError, "stop of Take"),
        (lambda c: fl.Take(c, 9, 9), fl.DataError, "at least one"),
        (lambda c: fl.Take([1, 2], 1), TypeError, "for Take, got list"),
        (lambda c: fl.Filtered(c, [True] * 19), ValueError, r"bools of shape \(20,\)"),
        (lambda c: fl.Filtered(c, [0, 20]), IndexError, "ordinal < 20"),
        (lambda c: fl.Filtered(c, [3, 3]), ValueError, "once"),
        (lambda c: fl.Filtered(c, [[3]]), ValueError, r"ordinals of shape \(k,\)"),
        (lambda c: fl.Filtered(c, [0.5]), TypeError, "float64"),
        (lambda c: fl.Filtered(c, lambda x: x), TypeError, '"score": function'),
        (lambda c: fl.Filtered(c, []), fl.DataError, "none of 20"),
        (lambda c: fl.Filtered(c, {"y": np.sign}), fl.SchemaError, "`y`"),
        (lambda c: fl.Filtered(c, {"x": 3}), TypeError, "function for `x`"),
        (lambda c: fl.Filtered(c, {"x": lambda x: x}), TypeError, "int64"),
        (lambda c: fl.Filtered(c, {"x": lambda x: x[:1] > 0}), TypeError, r"bool \(1,\)"),
        (lambda c: fl.Filtered(c, [1], columns=c), ValueError, "with columns"),
        (lambda c: fl.Filtered(c, {"x": np.sign}, columns=fl.Take(c, 9)), ValueError, "got 9"),
        (lambda c: fl.Filtered(c, lengths=3), TypeError, "least, most"),
        (lambda c: fl.Filtered(c, lengths=(2, 3)), fl.DataError, "none of 20"),
        (lambda c: fl.Filtered(fl.Mixture({"a": c}), [1]), ValueError, "order of its own"),
        (
            lambda c: fl.Filtered(fl.ArrayDeserializer(s=[[1, 2]]), {"s": np.sign}),
            fl.SchemaError,
            "got 2 in sequence 0",
        ),
        (
            lambda c: fl.Filtered(CountedCorpus([1] * 4, [4], bad=[2]), {"t": lambda t: t == ""}),
            fl.DataError,
            "got: planted",
        ),
    ],
)
def test_what_cannot_be_chosen_is_an_error(make, error, message):
    with pytest.raises(error, match=message):
        make(fl.ArrayDeserializer(x=np.arange(20)))


def test_a_rank_without_a_sequence_of_a_small_minibatch():
    corpus = fl.Filtered(fl.ArrayDeserializer(x=np.arange(40)), [1, 4, 5, 9, 30])
    with fl.MinibatchSource(corpus, seed=1, max_sweeps=1) as source:
        parts = [source.next_minibatch(1, (rank, 2)) for rank in (0, 1)]
    assert [part.num_sequences for part in parts] == [1, 0]
    assert len(parts[1]["x"].rows) == 0


def tar_of(path, names):
    with tarfile.open(path, "w") as archive:
        for i, name in enumerate(names):
            for suffix, content in (("cls", f"{i}".encode()), ("txt", name.encode())):
                member = tarfile.TarInfo(f"{name}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def numbers_of(corpus, stream):
    """The numbers of all sequences, chunk by chunk."""
    return [n for k in range(len(corpus.chunks())) for n in corpus.read(k)[stream].rows.ravel().tolist()]


def test_sequences_by_key(tmp_path):
    """Names, numbers that are names, ids of text, and ordinals where a format has no keys."""
    names = [f"folder/{i:03}" if i % 2 else str(100 + i) for i in range(40)]
    tar = fl.TarDeserializer(tar_of(tmp_path / "a.tar", names), chunk_size=6000)
    for keys in (["104", "folder/007"], [104, "folder/007"], {"folder/007", "104"}, ["folder/007", "104", "104"]):
        taken = fl.Take(tar, keys=keys)
        assert numbers_of(taken, "cls") == [4, 7]
        assert taken.original(np.arange(2)).tolist() == [4, 7]
    (tmp_path / "a.ctf").write_text("".join(f"{i * i} |x {i}\n" for i in range(50)))
    text = fl.CTFDeserializer(tmp_path / "a.ctf", x=fl.Stream(1), chunk_size=100)
    assert numbers_of(fl.Take(text, keys=np.array([49, 1600])), "x") == [7, 40]
    fl.convert(fl.ArrayDeserializer(x=np.arange(60), id=np.arange(60) % 20 + 5), tmp_path / "s", chunk_bytes=64)
    store = fl.open_corpus(tmp_path / "s")
    assert numbers_of(fl.Take(store, keys=[59, 3]), "x") == [3, 59]
    assert numbers_of(fl.Take(store, keys={"id": [5, 24]}), "x") == [0, 19, 20, 39, 40, 59]
    with fl.MinibatchSource(fl.Take(store, keys=[59, 3]), max_sweeps=1) as source:
        assert sorted(source.next_minibatch(9)["x"].rows.tolist()) == [3, 59]
    assert fl.Take(store, keys=[59, 3]).digest() == fl.Filtered(store, [3, 59]).digest()


def test_values_are_compared_as_they_are():
    """Not rounded by others in the list, nor without the zeros at the end of byte strings."""
    large = fl.ArrayDeserializer(u=np.array([2**63, 2**63 + 1, 5], np.uint64))
    assert fl.Take(large, keys={"u": [2**63 + 1, 5.0]}).original(np.arange(2)).tolist() == [1, 2]
    words = fl.ArrayDeserializer(b=[b"", b"a", b"a\0", b"\0"])
    assert fl.Take(words, keys={"b": [b"a\0", b"\0"]}).original(np.arange(2)).tolist() == [2, 3]
    with pytest.raises(KeyError, match="got none with 1"):
        fl.Take(fl.ArrayDeserializer(s=["1", "a"]), keys={"s": [1, "a"]})


def test_ordinals_of_parts_without_keys():
    parts = fl.Concat(fl.ArrayDeserializer(x=np.arange(4)), fl.ArrayDeserializer(x=np.arange(4, 8)))
    assert numbers_of(fl.Take(parts, keys=[5, 1]), "x") == [1, 5]


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda c: fl.Take(c, keys=[3, 99, 98]), KeyError, "got none with 99, 98"),
        (lambda c: fl.Take(c, keys=["three"]), KeyError, "got none with 'three'"),
        (lambda c: fl.Take(c, keys={"x": [3, 99]}), KeyError, "got none with 99"),
        (lambda c: fl.Take(c, keys={"y": [3]}), fl.SchemaError, "as `y`"),
        (lambda c: fl.Take(c, keys={"x": [3], "y": [4]}), ValueError, "of one stream"),
        (lambda c: fl.Take(c, 5, keys=[3]), ValueError, "both"),
        (lambda c: fl.Take(c, keys="three"), TypeError, "a list of keys"),
        (lambda c: fl.Take(c, keys={"x": "3"}), TypeError, "a list of keys"),
        (lambda c: fl.Take(c, keys={"x": None}), TypeError, "a list of keys"),
        (lambda c: fl.Take(c, keys=[-1]), ValueError, "a key of Take"),
        (lambda c: fl.Take(c, keys=[]), fl.DataError, "at least one"),
    ],
    ids=range(11),
)
def test_keys_that_cannot_be_taken(make, error, says):
    with pytest.raises(error, match=says):
        make(fl.ArrayDeserializer(x=np.arange(20)))
