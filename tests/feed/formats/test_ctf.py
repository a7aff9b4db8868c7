"""CTFDeserializer: CNTK's answers, our own cases, real files, and files that change or are damaged."""

from __future__ import annotations

import base64
import functools
import itertools
import json
import operator
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.formats.cntk import ctf_errors
from feedline.feed.formats.indexed import indexed_corpus as indexed_corpus
from tests.feed.conftest import ROOT, shared_file

CASES = json.loads((ROOT / "tests" / "fixtures" / "ctf_cases.json").read_text())
XY = {"x": fl.Stream(2), "y": fl.Stream(3, sparse=True)}


def as_lists(value):
    """Sequences of samples. A sparse sample is {index: sum}, without zeros."""
    if not value.is_sparse:
        return [sequence.tolist() for sequence in value.sequences()]
    out = []
    for sequence in value.sequences():
        rows = []
        for a, b in zip(sequence.indptr[:-1], sequence.indptr[1:], strict=True):
            row: dict[str, float] = {}
            for i, v in zip(sequence.indices[a:b].tolist(), sequence.values[a:b].tolist(), strict=True):
                row[str(i)] = row.get(str(i), 0) + v
            rows.append({i: v for i, v in row.items() if v})
        out.append(rows)
    return out


def read_all(corpus):
    return [corpus.read(chunk) for chunk in range(len(corpus.chunks()))]


def merged(chunks, name):
    return [sequence for chunk in chunks for sequence in as_lists(chunk[name])]


# ---------------------------------------------------------------------------------------------- cases


@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case["text"])[:40])
def test_our_cases(case, text_file):
    path = text_file(case["text"])
    streams = {n: fl.Stream(s.shape, sparse=s.sparse, defines_size=n == case.get("size_stream")) for n, s in XY.items()}
    place = {k: case[k] for k in ("line", "byte", "sequence", "stream") if k in case}
    if case.get("when") == "open":
        with pytest.raises(fl.DataError) as caught:
            fl.CTFDeserializer(path, streams, **case.get("options", {}))
        error = caught.value
    else:
        corpus = fl.CTFDeserializer(path, streams, **case.get("options", {}))
        (chunk,) = read_all(corpus)
        if "error" not in case:
            assert chunk.errors == {}
            assert {name: as_lists(chunk[name]) for name in chunk} == {"x": case["x"], "y": case["y"]}
            if "lengths" in case:
                lengths = corpus.lengths(np.arange(chunk.num_sequences))
                assert [1] * chunk.num_sequences if lengths is None else lengths.tolist() == case["lengths"]
            return
        ((_, error),) = chunk.errors.items()
    assert error.what == case["error"]
    assert error.path == str(path)
    assert {k: getattr(error, k) for k in place} == place


def read_or_raise(path, streams, options):
    for chunk in read_all(fl.CTFDeserializer(path, streams, **options)):
        for error in chunk.errors.values():
            raise error


def golden_cases():
    for base in (ROOT.parent, ROOT.parent.parent):
        path = base / "shared" / "golden" / "ctf_parse.json"
        if path.exists():
            return json.loads(path.read_text())["cases"]
    return [None]


@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: case["id"] if case else "none")
def test_cntk_answers(case, text_file):
    if case is None:
        shared_file("golden/ctf_parse.json")
    path = text_file(case["text"] if "text" in case else base64.b64decode(case["text_base64"]))
    streams = {
        s["name"]: fl.Stream(s["shape"], sparse=s["sparse"], field=s["field"], defines_size=s["defines_mb_size"])
        for s in case["streams"]
    }
    names = {"skipSequenceIds": "skip_sequence_ids", "maxErrors": "max_errors", "chunkSizeInBytes": "chunk_size"}
    options = {names[k]: v for k, v in case["options"].items()} | {"fill_missing": True}
    expected = case["expect"]
    if "error" in expected:
        with pytest.raises((fl.DataError, fl.SchemaError)):
            read_or_raise(path, streams, options)
        return
    corpus = fl.CTFDeserializer(path, streams, **options)
    chunks = read_all(corpus)
    assert not any(chunk.errors for chunk in chunks)
    total = sum(info.sequences for info in corpus.chunks())
    for name, answer in expected["delivered"].items():
        assert answer["num_sequences"] == total
        got = merged(chunks, name)
        assert sum(map(len, got)) == answer["num_samples"]
        if "sequences" not in answer:
            continue
        for mine, theirs in zip(got, answer["sequences"], strict=True):
            for row, want in zip(mine, theirs, strict=True):
                if streams[name].sparse:
                    assert row.keys() == want.keys()
                    row, want = [row[k] for k in sorted(row)], [want[k] for k in sorted(want)]
                np.testing.assert_allclose(row, np.array(want, float), rtol=1e-6, atol=1e-44)
    lengths = corpus.lengths(np.arange(total))
    assert expected["position_after"] == (total if lengths is None else lengths.sum())


def plain_reader(path, fields):
    """Well-formed files only: {field: sequences of rows of strings}."""
    out = {field: [] for field in fields}
    last = object()
    for line in Path(path).read_text().splitlines():
        key = line.split("|")[0].strip()
        if not key or key != last:
            for rows in out.values():
                rows.append([])
        last = key
        for sample in line.split("|")[1:]:
            name, *values = sample.split()
            if name in out:
                out[name][-1].append(values)
    return out


def pairs(sequence):
    """The (index, value) pairs of each sample of one sparse sequence."""
    entries = list(zip(sequence.indices.tolist(), sequence.values.tolist(), strict=True))
    bounds = sequence.indptr.tolist()
    return [entries[a:b] for a, b in itertools.pairwise(bounds)]


REAL = [
    ("atis.train.ctf", {"S0": (943, True), "S1": (26, True), "S2": (129, True)}),
    ("seqclass.train.ctf", {"x": (2000, True), "y": (5, False)}),
    ("cmudict-0.7b.train-dev-1-21.ctf", {"S0": (69, True), "S1": (69, True)}),
    ("SimpleDataTrain_cntk_text.txt", {"labels": (2, False), "features": (2, False)}),
    ("tiny.ctf", {"S0": (69, True), "S1": (69, True)}),
]


@pytest.mark.parametrize(("file", "fields"), REAL, ids=[name for name, _ in REAL])
def test_real_files(file, fields, tmp_path):
    path = shared_file("data/" + file)
    corpus = fl.CTFDeserializer(
        path, {n: fl.Stream(d, sparse=s) for n, (d, s) in fields.items()}, cache=tmp_path / "c", chunk_size=100_000
    )
    chunks = read_all(corpus)
    expected = plain_reader(path, fields)
    for name, (_, sparse) in fields.items():
        if sparse:
            got = [pairs(s) for chunk in chunks for s in chunk[name].sequences()]
            want = [
                [[(int(i), float(np.float32(v))) for i, v in (pair.split(":") for pair in row)] for row in rows]
                for rows in expected[name]
            ]
        else:
            got = [s.tolist() for chunk in chunks for s in chunk[name].sequences()]
            want = [[[float(np.float32(v)) for v in row] for row in rows] for rows in expected[name]]
        assert got == want
    longest = [max(len(expected[n][i]) for n in fields) for i in range(len(expected[next(iter(fields))]))]
    assert sum(info.samples for info in corpus.chunks()) == sum(longest)


# ---------------------------------------------------------------------------------------------- laws


@st.composite
def sequences_text(draw):
    rows = []
    for key in range(draw(st.integers(1, 30))):
        for row in range(draw(st.integers(1, 4))):
            pad = " " * draw(st.integers(0, 20))
            rows.append(f"{key} |x {key} {row}{pad}" + (f" |y {key % 3}:1" if row == 0 else ""))
    return "\n".join(rows) + draw(st.sampled_from(["", "\n"]))


def slow_chunks(sizes, limit):
    """CNTK's rule: close before the sequence that would pass the limit."""
    chunks, inside = [], 0
    for size in sizes:
        if not chunks or inside + size > limit:
            chunks.append(0)
            inside = 0
        chunks[-1] += 1
        inside += size
    return chunks


@given(text=sequences_text(), chunk_size=st.integers(1, 400), seed=st.integers(0, 99))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_chunks_and_selections(text, chunk_size, seed, tmp_path):
    path = tmp_path / "data.ctf"
    path.write_text(text)
    corpus = fl.CTFDeserializer(path, XY, chunk_size=chunk_size, cache=False)
    keys = [int(line.split(" ")[0]) for line in text.splitlines()]
    sizes = [
        sum(len(line) + 1 for line, k in zip(text.splitlines(), keys, strict=True) if k == key)
        for key in dict.fromkeys(keys)
    ]
    sizes[-1] -= not text.endswith("\n")
    infos = corpus.chunks()
    assert [info.sequences for info in infos] == slow_chunks(sizes, chunk_size)
    assert sum(info.bytes for info in infos) == len(text)
    chunks = read_all(corpus)
    assert [info.samples for info in infos] == [chunk["x"].num_samples for chunk in chunks]
    assert [c.num_sequences for c in chunks] == [info.sequences for info in infos]
    complete = fl.CTFDeserializer(path, XY, cache=False).read(0)
    assert merged(chunks, "x") == as_lists(complete["x"])

    which = np.random.default_rng(seed).integers(0, len(sizes), 12)
    picked, taken = corpus.select(which), complete.take(which)
    assert all(picked[name] == taken[name] for name in XY)
    assert corpus.lengths(which) is None or corpus.lengths(which).tolist() == taken["x"].lengths.tolist()
    assert corpus.keys(which).tolist() == which.tolist()


@given(
    text=sequences_text(), at=st.integers(0, 10_000), damage=st.sampled_from([b"x", b"|", b"\n", b":", b"7", b"\xff"])
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_damaged_text_is_a_data_error_in_its_place(text, at, damage, tmp_path):
    """Every read returns all sequences or marks the bad ones, and `select` agrees with `read`."""
    path = tmp_path / "data.ctf"
    raw = text.encode()
    at %= len(raw)
    path.write_bytes(raw[:at] + damage + raw[at + 1 :])
    try:
        corpus = fl.CTFDeserializer(path, XY, cache=False, chunk_size=200)
    except fl.DataError:
        return
    complete = fl.CTFDeserializer(path, XY, cache=False).read(0)
    errors = {}
    first = 0
    for number, info in enumerate(corpus.chunks()):
        chunk = corpus.read(number)
        errors.update((first + i, (e.byte, e.what)) for i, e in chunk.errors.items())
        assert chunk.num_sequences == info.sequences
        ordinals = np.arange(first, first + info.sequences)
        picked = corpus.select(ordinals)
        assert {i: str(e) for i, e in picked.errors.items()} == {i: str(e) for i, e in chunk.errors.items()}
        assert all(picked[name] == chunk[name] for name in XY)
        for i, error in chunk.errors.items():
            assert error.sequence == first + i
            assert error.line == path.read_bytes()[: error.byte].count(b"\n") + 1
            assert chunk["x"].lengths[i] == chunk["y"].lengths[i] == 0
        first += info.sequences
    assert errors == {i: (e.byte, e.what) for i, e in complete.errors.items()}


@pytest.mark.parametrize("gap", [0, 30, 1000])
def test_selections_read_in_several_runs(text_file, monkeypatch, gap):
    """Wide gaps between the selected sequences divide the reads. Bytes of errors still count from the file's start."""
    monkeypatch.setattr(indexed_corpus, "_GAP_BYTES", gap)
    rows = [f"{i} |x {i} {'?' if i % 10 == 7 else i} |y 0:1\n" for i in range(100)]
    path = text_file("".join(rows))
    corpus = fl.CTFDeserializer(path, XY, chunk_size=500)
    complete = fl.CTFDeserializer(path, XY, cache=False).read(0)
    for which in ([3], [97, 3, 17, 18, 19, 3], [0, 99], list(range(0, 100, 9)), list(range(100))[::-1], []):
        picked, taken = corpus.select(np.array(which, np.int64)), complete.take(np.array(which, np.int64))
        assert all(picked[name] == taken[name] for name in XY)
        assert {i: str(e) for i, e in picked.errors.items()} == {i: str(e) for i, e in taken.errors.items()}


def test_several_files_are_a_concatenation(text_file):
    texts = ["|x 1 1 |y 0:1\n|x 2 2 |y 1:1\n", "\n|x 3 3 |y 2:1\n", "5 |x 4 4 |y 0:1\n5 |x 5 5\n6 |x 6 6 |y 1:1\n"]
    paths = [text_file(text, f"{i}.ctf") for i, text in enumerate(texts)]
    corpus = fl.CTFDeserializer(paths, XY)
    chunks = read_all(corpus)
    assert [chunk.num_sequences for chunk in chunks] == [2, 1, 2]
    assert merged(chunks, "x") == [[[1, 1]], [[2, 2]], [[3, 3]], [[4, 4], [5, 5]], [[6, 6]]]
    assert corpus.lengths(np.array([4, 3, 0])).tolist() == [1, 2, 1]
    # Line numbers continue through the files. The second file's first line is blank.
    assert corpus.keys(np.arange(5)).tolist() == [0, 1, 3, 5, 6]
    assert as_lists(corpus.select(np.array([3, 0, 3, 2]))["x"]) == [
        [[4, 4], [5, 5]],
        [[1, 1]],
        [[4, 4], [5, 5]],
        [[3, 3]],
    ]
    folder = fl.CTFDeserializer(paths[0].parent, XY)
    assert folder.digest() == corpus.digest() == fl.CTFDeserializer(paths[0].parent / "[0-9].ctf", XY).digest()
    assert "and 2 more" in corpus.name
    with pytest.raises(fl.DataError, match=r"expected files at .*txt, got none"):
        fl.CTFDeserializer(paths[0].parent / "*.txt", XY)
    # Index files are next to the texts by now.
    assert fl.CTFDeserializer(paths[0].parent / "*", XY).digest() == corpus.digest()
    with pytest.raises(ValueError, match="empty list"):
        fl.CTFDeserializer([], XY)


def test_digest_is_of_the_content(text_file):
    original = text_file("|x 1 1 |y 0:1\n", "one.ctf")
    equal = text_file("|x 1 1 |y 0:1\n", "two.ctf")
    different = text_file("|x 1 2 |y 0:1\n", "other.ctf")
    digests = [fl.CTFDeserializer(path, XY).digest() for path in (original, equal, different)]
    assert digests[0] == digests[1] != digests[2]


def test_shapes_and_dtypes(text_file):
    path = text_file("|m 1 2 3 4 |s 5 |d 0.1\n|m 5 6 7 8 |s 6 |d 0.2\n")
    corpus = fl.CTFDeserializer(path, m=fl.Stream((2, 2)), s=fl.Stream(()), d=fl.Stream(1, dtype="float64"))
    chunk = corpus.read(0)
    assert chunk["m"].rows.tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    assert chunk["s"].rows.tolist() == [5, 6]
    assert chunk["d"].rows.tolist() == [[0.1], [0.2]]
    assert corpus.lengths(np.arange(2)) is None


def test_declarations_are_checked(text_file):
    path = text_file("|x 1 1\n")
    for streams, message in [
        ({"x": fl.Stream(2, dtype="int32")}, "float32 or float64"),
        ({"x": fl.Stream(2), "z": fl.Stream(2, field="x")}, "read once"),
        ({"x": fl.Stream(2, field="a b")}, "field name"),
        ({"#x": fl.Stream(2)}, "field name"),
        ({"x": fl.Stream(0)}, "1 to"),
        ({"x": fl.Stream(2, defines_size=True), "y": fl.Stream(2, defines_size=True)}, "at most one"),
        ({}, "at least one stream"),
    ]:
        with pytest.raises(fl.SchemaError, match=message):
            fl.CTFDeserializer(path, streams)
    with pytest.raises(fl.SchemaError, match="once"):
        fl.CTFDeserializer(path, {"x": fl.Stream(2)}, x=fl.Stream(2))
    with pytest.raises(ValueError, match="chunk_size"):
        fl.CTFDeserializer(path, XY, chunk_size=0)
    with pytest.raises(fl.DataError, match=r"No such file(.*\n)*.*missing\.ctf"):
        fl.CTFDeserializer(path.with_name("missing.ctf"), XY)
    with pytest.raises(fl.DataError, match="`y`, which defines the size"):
        fl.CTFDeserializer(path, x=fl.Stream(2), y=fl.Stream(2, defines_size=True))
    corpus = fl.CTFDeserializer(path, x=fl.Stream(2))
    for call in (lambda: corpus.read(1), lambda: corpus.select(np.array([1])), lambda: corpus.keys(np.array([-1]))):
        with pytest.raises(IndexError):
            call()


def test_a_file_that_went_away(text_file):
    path = text_file("|x 1 1\n")
    corpus = fl.CTFDeserializer(path, x=fl.Stream(2))
    path.unlink()
    for read in (lambda: corpus.read(0), lambda: corpus.select(np.array([0]))):
        with pytest.raises(fl.DataError, match="expected a readable file") as raised:
            read()
        assert raised.value.path == str(path)


@pytest.mark.parametrize(
    ("stream", "advice"),
    [
        (fl.Stream(9, field="word"), "sparse=True"),
        (fl.Stream(3, sparse=True, field="word"), "if the data is right, declare a larger shape"),
        (fl.Stream(1, field="size"), "if the data is right, declare a larger shape"),
        (fl.Stream(9, sparse=True), r"the row has `word`, `size`; .*field="),
    ],
)
def test_wrong_declarations_are_distinct_from_wrong_data(text_file, stream, advice):
    path = text_file("|word 7:1 |# no stream |size 1 2\n")
    (error,) = fl.CTFDeserializer(path, words=stream).read(0).errors.values()
    assert re.search(advice, error.hint)


def test_pickle_and_threads(text_file):
    path = text_file("".join(f"{i} |x {i} {i}\n" for i in range(2000)))
    corpus = fl.CTFDeserializer(path, x=fl.Stream(2), chunk_size=1000)
    copy = pickle.loads(pickle.dumps(corpus))
    assert copy.digest() == corpus.digest()
    assert copy.schema == corpus.schema
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda i: corpus.read(i)["x"].rows[:, 0].tolist(), list(range(len(corpus.chunks()))) * 3))
    assert functools.reduce(operator.iadd, got[: len(corpus.chunks())], []) == list(range(2000))
    assert got[: len(corpus.chunks())] == got[-len(corpus.chunks()) :]
    corpus.close()
    assert "2000 sequences" in repr(corpus)


# ---------------------------------------------------------------------------------------------- errors


def test_error_reads_like_this(text_file):
    path = text_file("|x 1 2 |y 0:1\n|x 1 2 3 |y 0:1\n")
    error = fl.CTFDeserializer(path, XY).read(0).errors[1]
    assert str(error) == (
        f"expected at most 2 values for stream `x`, got 3\n"
        f"  at {path}:2 (byte 14), sequence 1\n"
        f"  if the data is right, declare a larger shape; "
        f'pass on_error="skip" to the source to skip such sequences and count them'
    )


def test_advice_on_lenient(text_file):
    path = text_file("|x .5 1 |y 0:1\n\n|x nan 1 |y 0:1\n|x k |y 0:1\n")
    strict = fl.CTFDeserializer(path, XY).read(0)
    assert [i for i, e in strict.errors.items() if "lenient=True" in e.hint] == [0, 1, 2]
    lenient = fl.CTFDeserializer(path, XY, lenient=True).read(0)
    assert list(lenient.errors) == [2]
    assert "lenient" not in lenient.errors[2].hint


def test_source_raises_or_skips(text_file, tmp_path):
    path = text_file("".join(f"|x {i} {'q' if i == 3 else i} |y 0:1\n" for i in range(6)))

    def source(**options):
        return fl.MinibatchSource(fl.CTFDeserializer(path, XY), shuffle=False, max_sweeps=1, **options)

    with pytest.raises(fl.DataError, match="got `q`") as caught:
        list(source().minibatches(2))
    assert (caught.value.line, caught.value.sequence) == (4, 3)
    quarantine = tmp_path / "bad.jsonl"
    ids = [i for m in source(on_error=fl.Quarantine(quarantine)).minibatches(2) for i in m.ids.tolist()]
    assert ids == [0, 1, 2, 4, 5]
    assert json.loads(quarantine.read_text())["line"] == 4


def test_file_that_changes_under_the_reader(text_file):
    text = "".join(f"|x {i} {i} |y 0:1\n" for i in range(100))
    path = text_file(text)
    corpus = fl.CTFDeserializer(path, XY, chunk_size=300)
    corpus.read(1)
    path.write_text(text.replace("|x 5 5", "|x 6 6"))
    os.utime(path, ns=(0, 12345))  # for any resolution of the clock
    with pytest.raises(fl.DataError, match="has changed since"):
        corpus.read(0)
    with pytest.raises(fl.DataError, match="has changed since"):
        corpus.select(np.array([5]))


def test_file_that_is_cut_short_under_the_reader(text_file):
    path = text_file("".join(f"|x {i} {i} |y 0:1\n" for i in range(100)))
    corpus = fl.CTFDeserializer(path, XY, chunk_size=300)
    os.truncate(path, 400)
    with pytest.raises(fl.DataError, match="truncated") as caught:
        corpus.read(len(corpus.chunks()) - 1)
    assert caught.value.path == str(path)
    with pytest.raises(fl.DataError, match="has changed since"):
        corpus.read(0)


def test_memory_limit(text_file):
    # Eight bytes of text ask for four megabytes each.
    path = text_file("|x 1\n" * 10)
    wide = {"x": fl.Stream(1_000_000)}
    corpus = fl.CTFDeserializer(path, wide, fill_missing=True, memory=10_000_000)
    with pytest.raises(fl.DataError, match=r"at most 10000000 bytes .*\(memory\), got 12000") as caught:
        corpus.read(0)
    assert "chunk_size" in caught.value.hint
    assert caught.value.sequence == 2
    generous = fl.CTFDeserializer(path, wide, fill_missing=True, memory=50_000_000)
    assert generous.read(0)["x"].rows.shape == (10, 1_000_000)


def test_a_shape_that_no_memory_holds_is_compared_with_the_file(text_file):
    """It is the declaration that is wrong, not the memory that is short."""
    path = text_file("|x 1 2\n" * 10)
    source = fl.MinibatchSource(fl.CTFDeserializer(path, x=fl.Stream(2**31 - 1)))
    with pytest.raises(fl.DataError, match=r"expected at most .* bytes decoded at once \(memory\)"):
        source.next_minibatch(3)


def test_missing_values_are_an_error_unless_they_are_to_be_filled(text_file):
    """A typing error in a declared shape used to train on zeros."""
    path = text_file("|x 1 2 |y 0:1\n|x 3 |y 1:1\n|x 4 5 |y\n")
    source = fl.MinibatchSource(fl.CTFDeserializer(path, XY), shuffle=False)
    with pytest.raises(fl.DataError, match="expected 2 values for stream `x`, got 1") as caught:
        source.next_minibatch(3)
    assert (caught.value.path, caught.value.line, caught.value.byte) == (str(path), 2, 14)
    assert (caught.value.sequence, caught.value.stream) == (1, "x")
    assert "fill_missing=True" in str(caught.value)
    listed = path.parent / "listed.jsonl"
    source = fl.MinibatchSource(fl.CTFDeserializer(path, XY), shuffle=False, on_error=fl.Quarantine(listed))
    assert source.next_minibatch(3).ids.tolist() == [0, 2]
    assert json.loads(listed.read_text())["sequence"] == 1
    source = fl.MinibatchSource(fl.CTFDeserializer(path, XY, fill_missing=True), shuffle=False)
    assert source.next_minibatch(3)["x"].rows.tolist() == [[1, 2], [3, 0], [4, 5]]
    assert pickle.loads(pickle.dumps(fl.CTFDeserializer(path, XY, fill_missing=True))).read(0).errors == {}


# ---------------------------------------------------------------------------------------------- max_errors


def test_max_errors_counts_over_chunks_and_each_chunk_once(text_file):
    rows = [f"{i} |x 1 {'q' if i % 5 == 0 else i}\n{i} |x 2 2\n" for i in range(20)]  # 4 bad rows, 3 errors each
    path = text_file("".join(rows))
    streams = {"x": fl.Stream(2)}
    enough = fl.CTFDeserializer(path, streams, max_errors=12, chunk_size=60)
    for _ in range(3):
        chunks = read_all(enough)
        assert sum(chunk["x"].num_samples for chunk in chunks) == 36
        assert not any(chunk.errors for chunk in chunks)
    assert enough.select(np.array([5, 6]))["x"].lengths.tolist() == [1, 2]
    assert enough.lengths(np.array([5, 6])).tolist() == [2, 2]
    with pytest.raises(fl.DataError, match=r"at most 11 errors \(max_errors\), got one more") as caught:
        read_all(fl.CTFDeserializer(path, streams, max_errors=11, chunk_size=60))
    assert caught.value.sequence == 15


def test_max_errors_never_loses_a_stream(text_file):
    path = text_file("|x 1 1 |y 0:1\n|x q |y 0:1\n")
    with pytest.raises(fl.DataError, match="none in the whole sequence") as caught:
        fl.CTFDeserializer(path, XY, max_errors=100).read(0)
    assert (caught.value.line, caught.value.stream) == (2, "x")


def test_errors_of_many_rows_are_described_on_request(tmp_path, monkeypatch):
    """A row can be much shorter than the description of its error."""
    path = tmp_path / "a.ctf"
    path.write_bytes(b"|x 1 2\n" + b"|x 1\n" * 20_000 + b"|x 3 4\n")
    described = []
    original = ctf_errors.DataError
    monkeypatch.setattr(ctf_errors, "DataError", lambda *args, **named: described.append(1) or original(*args, **named))
    chunk = fl.CTFDeserializer(path, x=fl.Stream((2,))).read(0)
    assert len(chunk.errors) == 20_000
    assert 0 not in chunk.errors
    assert 20_001 not in chunk.errors
    assert not described
    for row in (1, 15_000, 7, 20_000):
        error = chunk.errors[row]
        assert (error.line, error.sequence, error.byte) == (row + 1, row, 7 + 5 * (row - 1))
    assert len(described) == 4
    assert chunk["x"].rows.tolist() == [[1, 2], [3, 4]]
    assert [error.line for error in chunk.slice(5, 8).errors.values()] == [6, 7, 8]
