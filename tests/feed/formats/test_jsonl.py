"""JSON Lines, compressed or not: values, laws, damage, in this order."""

import gzip
import json
import logging
import random
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.feed.files import compressed_text
from feedline.feed.formats.indexed.rows import parser_fields
from feedline.feed.formats.indexed.value_paths import steps_of
from feedline.feed.formats.jsonl import infer_json_streams
from feedline.feed.protocol import Unread
from feedline.testing import assert_resumes, bytes_digest, sequences_of
from tests.effort import examples
from tests.feed.formats.corpora import assert_read
from tests.oracles.rows import BAD, json_row

STREAMS = {
    "x": fl.Stream(3),
    "n": fl.Stream((), "int64"),
    "score": fl.Stream((), "float64", field="meta.score"),
    "t": fl.Stream(dtype="str"),
    "tokens": fl.Stream((), "int32"),
}


def row(i):
    draw = random.Random(i)
    return {
        "id": f"row {i}",
        "tokens": [draw.randrange(1000) for _ in range(i % 4)],
        "x": [i / 2, -i, 1e-3 * i],
        "meta": {"source": {"deep": [1, {"a": None}]}, "score": draw.gauss(0, 1)},
        "n": i * 10**16,
        "t": ["", "é\n", "\U0001f600", '"quoted" \\ ' * 9][i % 4],
    }


ROWS = [row(i) for i in range(400)]
TEXT = "\n".join(
    json.dumps(one, ensure_ascii=i % 2 == 0) for i, one in enumerate(ROWS)
).encode()  # no newline at its end


def zstd(data):
    return pa.compress(data, codec="zstd", asbytes=True)


PACKINGS = {
    "": lambda text: text,
    ".gz": gzip.compress,
    ".members.gz": lambda text: b"".join(gzip.compress(text[i : i + 3000]) for i in range(0, len(text), 3000)),
    ".zst": zstd,
    ".frames.zst": lambda text: b"".join(zstd(text[i : i + 3000]) for i in range(0, len(text), 3000)),
}


@pytest.fixture(scope="module", params=PACKINGS)
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("jsonl") / f"data.jsonl{request.param}"
    path.write_bytes(PACKINGS[request.param](TEXT))
    return path


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain.jsonl"
    path.write_bytes(TEXT)
    return path


@pytest.fixture(autouse=True)
def small_spans(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # lists of skipped rows are written here
    monkeypatch.setattr(compressed_text, "SPAN_BYTES", 7000)


def opened(path, **options):
    return fl.JSONLinesDeserializer(path, **{"chunk_size": 10_000, **options}, **STREAMS)


def same(value, expected):
    got = value.tolist()
    assert got == expected, (got, expected)


def check(chunk, rows):
    same(chunk["n"], [one["n"] for one in rows])
    same(chunk["score"], [one["meta"]["score"] for one in rows])
    same(chunk["t"], [one["t"] for one in rows])
    same(chunk["tokens"], [one["tokens"] for one in rows])
    assert np.array_equal(chunk["x"].rows, np.array([one["x"] for one in rows], np.float32))


# ---- values ---------------------------------------------------------------------------------------------


def test_values_match_the_json_module(path):
    assert_read(opened(path), ROWS, check)


def test_undeclared(path):
    corpus = fl.open_corpus(path)
    assert isinstance(corpus, fl.JSONLinesDeserializer)
    assert list(corpus.schema.items()) == [
        ("id", fl.Stream(dtype="str")),
        ("tokens", fl.Stream((), "int64")),
        ("x", fl.Stream(3, "float64")),
        ("meta.source.deep", fl.Stream(dtype="bytes")),
        ("meta.score", fl.Stream((), "float64")),
        ("n", fl.Stream((), "int64")),
        ("t", fl.Stream(dtype="str")),
    ]
    chunk = corpus.read(0)
    same(chunk["tokens"], [one["tokens"] for one in ROWS])
    assert json.loads(chunk["meta.source.deep"].tolist()[7]) == [1, {"a": None}]
    loader = fl.DataLoader(str(path), batch_size=50)
    assert [key for batch in loader for key in batch["id"]] == [one["id"] for one in ROWS]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"a": 1}, {"a": 2.5}], {"a": fl.Stream((), "float64")}),
        ([{"a": True}], {"a": fl.Stream((), "bool")}),
        ([{"a": True}, {"a": 1}], {"a": fl.Stream(dtype="bytes")}),
        ([{"a": 2**63}], {"a": fl.Stream((), "uint64")}),
        ([{"a": 2**63}, {"a": -1}], {"a": fl.Stream((), "float64")}),
        ([{"a": 2**64}], {"a": fl.Stream((), "float64")}),
        ([{"a": [[1, 2], [3, 4], [5, 6]]}], {"a": fl.Stream((3, 2), "int64")}),
        ([{"a": [[1, 2]]}, {"a": [[3, 4], [5, 6]]}], {"a": fl.Stream(2, "int64")}),
        ([{"a": []}, {"a": [1.5]}], {"a": fl.Stream((), "float64")}),
        ([{"a": [1, [2]]}], {"a": fl.Stream(dtype="bytes")}),
        ([{"a": ["x", "y"]}], {"a": fl.Stream(dtype="str")}),
        ([{"a": [["x"]]}], {"a": fl.Stream(dtype="bytes")}),
        ([{"a": {}}, {"a": {"b": 1}}], {"a": fl.Stream(dtype="bytes")}),
        ([{"a.b": {"c\\": 1}}], {r"a\.b.c\\": fl.Stream((), "int64")}),
        ([{"a": 1, "b": None}, {"c": 1, "a": 2}], {"a": fl.Stream((), "int64")}),
    ],
)
def test_types_of_the_first_rows(tmp_path, caplog, rows, expected):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert infer_json_streams(path) == expected
    corpus = fl.JSONLinesDeserializer(path, cache=False)
    chunk = corpus.read(0)
    assert (len(chunk), chunk.errors) == (len(rows), {})
    assert ("no streams" in caplog.text) == ("b" in rows[0])
    with caplog.at_level(logging.ERROR):
        again = fl.JSONLinesDeserializer(path, dict(corpus.schema.streams), cache=False).read(0)
    assert again.values == chunk.values


def test_a_later_row_that_disagrees_is_one_unreadable_sequence(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": [1, 2]}\n' * 150 + '{"a": [1, 2, 3]}\n{"a": [1.5, 2]}\n{"a": 1}\n{"b": 1}\n{"a": [3, 4]}\n')
    corpus = fl.open_corpus(path)
    assert corpus.schema["a"] == fl.Stream(2, "int64")
    chunk = corpus.read(0)
    assert list(chunk.errors) == [150, 151, 152, 153]
    messages = [str(error) for error in chunk.errors.values()]
    for message, expected in zip(
        messages,
        ["expected 2 values.*got more", "an integer.*got `1.5", "expected a list.*got `1}`", "the key `a`.*got none"],
        strict=True,
    ):
        assert re.search(expected, message), message
    assert chunk.errors[150].line == 151
    assert chunk.errors[150].byte == 150 * 14 + 6
    assert chunk["a"].rows[154].tolist() == [3, 4]


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([0, -1, 2**63, -(2**63), 1e308]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
kinds = st.sampled_from(
    [
        *(
            fl.Stream((), dtype)
            for dtype in ("bool", "int8", "uint8", "int32", "int64", "uint64", "float32", "float64")
        ),
        *(fl.Stream(2, "float32"), fl.Stream((2, 2), "int16"), fl.Stream(0, "int64"), fl.Stream(dtype="str")),
    ]
)


def parsed(lines, streams, ragged=()):
    """Values by stream and row, from the kernel alone. Rows with an error are BAD."""
    text = b"".join(lines)
    buffer = np.full(len(text) + 128, ord("0"), np.uint8)
    buffer[64:-64] = np.frombuffer(text, np.uint8)
    schema = fl.Schema(streams)
    fields = parser_fields(schema, frozenset(ragged), memory_bytes=1 << 30, what="JSON")
    routes = [[key.encode() for key in steps_of(stream.field or name)] for name, stream in streams.items()]
    parser = _native.JsonParser(fields, routes, 1 << 30)
    entries = np.zeros(len(lines), [("key", "<u8"), ("offset", "<u8"), ("size", "<u4"), ("samples", "<u4")])
    entries["size"] = [len(line) for line in lines]
    entries["offset"][1:] = np.cumsum(entries["size"])[:-1]
    parsed_streams, errors = parser.parse(buffer, 64, entries.view(np.uint8), 0)
    bad = set(errors.view("<u4").reshape(-1, 8)[:, 6].tolist())
    out = {}
    for (name, stream), (data, bounds, offsets, _) in zip(streams.items(), parsed_streams, strict=True):
        if stream.is_bytes:
            value = fl.Value.from_buffer(data, bounds, "str" if stream.is_text else "bytes", offsets)
        else:
            count = len(lines) if offsets is None else offsets[-1]
            value = fl.Value.from_dense(data.view(stream.dtype).reshape(count, *stream.shape), offsets)
        out[name] = [BAD if i in bad else one for i, one in enumerate(value.tolist())]
    return out


def agrees(got, expected, stream):
    if expected is BAD or got is BAD:
        return (expected is BAD) == (got is BAD)
    if stream.is_bytes:
        return got == expected
    with np.errstate(over="ignore"):
        return np.array_equal(
            np.array(got, stream.dtype), np.array(expected, stream.dtype), equal_nan=stream.dtype.kind == "f"
        )


@given(data=st.data())
@settings(max_examples=examples(75))
def test_any_row_is_read_as_by_the_json_module(data):
    streams = {"a": data.draw(kinds), "b.c": data.draw(kinds)}
    ragged = data.draw(st.sets(st.sampled_from(["a", "b.c"])))
    count = data.draw(st.integers(1, 4))
    near = st.one_of(
        values, st.integers(-300, 300), st.lists(st.integers(0, 9), min_size=2, max_size=2), st.text(), st.floats()
    )
    objects = [
        {"a": data.draw(near), "z": data.draw(values), "b": data.draw(st.fixed_dictionaries({"c": near}) | values)}
        for _ in range(count)
    ]
    separators = data.draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " : ")]))
    ascii_only = data.draw(st.booleans())
    lines = [
        json.dumps(row, separators=separators, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        for row in objects
    ]
    if data.draw(st.booleans()):  # damage
        at = data.draw(st.integers(0, count - 1))
        line = bytearray(lines[at])
        place = data.draw(st.integers(0, len(line) - 1))
        piece = data.draw(
            st.sampled_from([b"", b'"', b"\\", b"}", b"]", b",", b"0", b"-", b".", b"e", b"\0", b"u", b"\xff", b" "])
        )
        line[place : place + data.draw(st.integers(0, 2))] = piece
        lines[at] = bytes(line).replace(b"\n", b" ")
    lines = [line + b"\n" for line in lines]
    if data.draw(st.booleans()):
        lines[-1] = lines[-1][:-1]
    expected = [json_row(line, streams, ragged) for line in lines]
    rows = parsed(lines, streams, ragged)
    for i, row in enumerate(expected):
        if row is None:
            continue
        for name, stream in streams.items():
            expected_value = BAD if row is BAD else row[name]
            assert agrees(rows[name][i], expected_value, stream), (lines[i], name, rows[name][i], expected_value)


@pytest.mark.parametrize(
    "number",
    [
        "0",
        "-0",
        "1e5",
        "1E+5",
        "1.5e-7",
        "9007199254740993",
        "1e400",
        "-1e-400",
        "0.1",
        "123456789012345678901234567890",
        "4.35",
        "2.2250738585072014e-308",
        "16777217",
        "3.4028236e38",
        "1" * 400,
        "0." + "0" * 400 + "1",
        "1e0000000005",
    ],
)
def test_numbers_are_rounded_correctly(number):
    for dtype in ("float32", "float64"):
        with np.errstate(over="ignore"):
            expected = np.array(float(number)).astype(dtype)
            if dtype == "float32":
                expected = np.float32(number)
        (got,) = parsed([f'{{"a": {number}}}\n'.encode()], {"a": fl.Stream((), dtype)})["a"]
        assert np.array(got, dtype).tobytes() == np.array(expected, dtype).tobytes()


def test_a_list_among_the_first_rows_is_named_by_later_errors(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": [1, 2]}\n{"a": 3}\n')
    (error,) = fl.JSONLinesDeserializer(path, a=fl.Stream((), "int8"), cache=False).read(0).errors.values()
    assert "expected a list for stream `a`, got `3}`" in str(error)
    assert "`a` has a list of samples in one of the first 100 rows" in str(error)
    assert "if that row is the wrong one, pass sequences=[]" in str(error)
    (error,) = (
        fl.JSONLinesDeserializer(path, a=fl.Stream((), "int8"), sequences=[], cache=False).read(0).errors.values()
    )
    assert error.line == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "expected a JSON object, got `[1]`"),
        ('{"a": null}', "expected an integer for stream `a`, got null"),
        ('{"a": "1"}', 'expected an integer for stream `a`, got `"1"}`'),
        ('{"a": 1.0}', "expected an integer for stream `a`, got `1.0}`"),
        ('{"a": NaN}', "expected an integer for stream `a`, got `NaN}`"),
        ('{"a": true}', "expected an integer for stream `a`, got `true}`"),
        ('{"a": [1]}', "name the stream in sequences="),
        ('{"a": 128}', "expected an integer of int8 for stream `a`, got `128}`"),
        ('{"a": 99999999999999999999999}', "expected an integer of int8"),
        ('{"a": 01}', "expected JSON for stream `a`, got `01}`"),
        ('{"a": 1', "expected JSON, got the end of the line"),
        ('{"a": 1} x', "expected JSON, got `x`"),
        ('{"a": 1, "a": 2}', 'expected a key once for stream `a`, got it again: `"a": 2}`'),
        ('{"b": 1}', "expected the key `a` for stream `a`, got none"),
        ('{"b": "\\x", "a": 1}', "unknown escape"),
        ("{" + '"b": ' + "[" * 600 + "]" * 600 + ', "a": 1}', "at most 512 deep"),
    ],
)
def test_faults_are_reported(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(f'\n  \r\n{{"a": 1}}\r\n{line}\n{{"a": 2}}')
    corpus = fl.JSONLinesDeserializer(path, a=fl.Stream((), "int8"), sequences=(), cache=False)
    chunk = corpus.read(0)
    assert list(chunk.errors) == [1]
    error = chunk.errors[1]
    assert message in str(error)
    assert (error.line, error.path, error.sequence) == (4, str(path), 1)
    assert chunk["a"].rows[[0, 2]].tolist() == [1, 2]
    quarantined = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, on_error="skip")
    assert [n for m in quarantined.minibatches(9) for n in m["a"].rows.tolist()] == [1, 2]


@pytest.mark.parametrize("text", [r'"\ud800"', r'"\udc00"', r'"\ud800A"', '"\udcff"'])
def test_text_that_utf8_cannot_hold(tmp_path, text):
    path = tmp_path / "a.jsonl"
    path.write_bytes(f'{{"t": {text}, "u": 1}}\n{{"t": "\\ud83d\\ude00", "u": 2}}\n'.encode("utf-8", "surrogateescape"))
    chunk = fl.JSONLinesDeserializer(path, t=fl.Stream(dtype="str"), cache=False).read(0)
    assert "expected text in UTF-8" in str(chunk.errors[0])
    assert chunk["t"].samples()[1] == "\U0001f600"
    # What no stream reads does not matter.
    assert fl.JSONLinesDeserializer(path, u=fl.Stream((), "int64"), cache=False).read(0)["u"].rows.tolist() == [1, 2]


def test_a_byte_order_mark_and_blank_lines(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n \t\r\n{"a": 2}\n\n')
    corpus = fl.open_corpus(tmp_path / "a.jsonl")
    assert [chunk["a"].rows.tolist() for chunk in map(corpus.read, range(len(corpus.chunks())))] == [[1, 2]]
    (tmp_path / "b.jsonl").write_bytes('{"a": 1}\n'.encode("utf-16"))
    with pytest.raises(fl.DataError, match=r"UTF-16 byte order mark(.*\n)*.*iconv"):
        fl.JSONLinesDeserializer(tmp_path / "b.jsonl", a=fl.Stream())


def test_what_cannot_be_declared(plain):
    for streams, message in (
        ({"a": fl.Stream(5, sparse=True)}, "no sparse vectors"),
        ({"a": fl.Stream((), "float16")}, "expected one of bool, int8"),
        ({"a": fl.Stream(field="n"), "b": fl.Stream(field="n")}, "separate values"),
        ({"a": fl.Stream(field="meta"), "b": fl.Stream(field="meta.score")}, "separate values"),
        ({"a": fl.Stream(2**40)}, "at most 2147483648 bytes"),
    ):
        with pytest.raises(fl.SchemaError, match=message):
            fl.JSONLinesDeserializer(plain, streams)
    with pytest.raises(fl.SchemaError, match="names of streams in `sequences`, got q"):
        fl.JSONLinesDeserializer(plain, n=fl.Stream(), sequences=["q"])
    with pytest.raises(fl.SchemaError, match="each stream once, got n"):
        fl.JSONLinesDeserializer(plain, {"n": fl.Stream()}, n=fl.Stream())
    for text, message in (
        ("", "got none"),
        ("[1]\n", r"got `\[1\]`"),
        ('{"a": null}\n', "keys that not all rows have: a"),
    ):
        plain.write_text(text)
        with pytest.raises(fl.DataError, match=message):
            fl.JSONLinesDeserializer(plain)
    with pytest.raises(fl.DataError, match="at least one row"):
        plain.write_text("\n \n")
        fl.JSONLinesDeserializer(plain, a=fl.Stream())
    with pytest.raises(fl.DataError, match="No such file"):
        fl.JSONLinesDeserializer(plain.parent / "none.jsonl")


def test_memory_is_bounded(plain):
    with pytest.raises(fl.DataError, match=r"at most 2000 bytes of text at once.*\n.*\n.*chunk_size"):
        opened(plain, memory=2000).read(0)
    # Rows that are bad cost their place, too.
    plain.write_bytes(b"x\n" * 5000)
    with pytest.raises(fl.DataError, match="decoded at once"):
        fl.JSONLinesDeserializer(plain, x=fl.Stream(1000), memory=1 << 20).read(0)


def test_a_row_that_nothing_ends_is_refused_before_the_end():
    """Else a packed file of a few megabytes could fill the memory."""
    indexer = _native.RowIndexer.json(None, -1, 1 << 32)
    indexer.feed(np.frombuffer(b'{"a": 1}\n', np.uint8))
    block = np.full(64 << 20, ord("x"), np.uint8)
    for _ in range(63):
        indexer.feed(block)
    assert indexer.error is None
    indexer.feed(block)
    assert indexer.error == (_native.ROW_ERRORS["row_too_long"], 9)


# ---- laws -----------------------------------------------------------------------------------------------


def test_one_order_parts_and_resume(path):
    def source(**options):
        return fl.MinibatchSource(opened(path), **{"seed": 5, "max_sweeps": 2, **options})

    for shuffle in (True, fl.Window(chunks=2)):
        digests = {bytes_digest(source(shuffle=shuffle).minibatches(size)) for size in (11, 90)}
        assert len(digests) == 1
    assert_resumes(lambda: source(shuffle=fl.Window(chunks=3)), sizes=(40,))
    unpartitioned, parts = source(), [source(partition=(i, 3)) for i in range(3)]
    for minibatch in unpartitioned.minibatches(50):
        delivered = [one for part in parts for one in sequences_of([part.next_minibatch(50)])]
        assert delivered == sequences_of([minibatch])


@pytest.mark.filterwarnings("ignore:expected at most")
@pytest.mark.parametrize("workers", [2, 3])
def test_workers(path, workers):
    streams = {"n": fl.Stream((), "int64"), "t": fl.Stream(dtype="str")}
    loader = fl.DataLoader(
        fl.JSONLinesDeserializer(path, streams, chunk_size=10_000), batch_size=32, num_workers=workers, shuffle=True
    )
    texts = {n: t for batch in loader for n, t in zip(batch["n"].tolist(), batch["t"], strict=True)}
    assert texts == {one["n"]: one["t"] for one in ROWS}


def test_bad_rows_keep_their_tick(plain):
    def order(**options):
        source = fl.MinibatchSource(opened(plain), seed=2, max_sweeps=1, shuffle=fl.Window(chunks=2), **options)
        return [i for m in source.minibatches(30) for i in m.ids.tolist()]

    uninterrupted = order()
    # The same lengths, so that chunks stay the same. A row without its list has no samples.
    lines = TEXT.split(b"\n")
    damaged = {41, 200, 399}
    for i in damaged:
        lines[i] = lines[i].replace(b'"n"', b'"m"')
    plain.write_bytes(b"\n".join(lines))
    assert order(on_error="skip") == [i for i in uninterrupted if i not in damaged]
    with pytest.raises(fl.DataError, match="the key `n`"):
        order()


def test_the_digest_covers_the_content(plain, tmp_path):
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes(TEXT)
    digest = opened(plain).digest()
    assert opened(moved).digest() == digest
    moved.write_bytes(TEXT.replace(b'"n"', b'"N"', 1))
    assert fl.JSONLinesDeserializer(moved, x=fl.Stream(3)).digest() != digest
    assert opened(plain, sequences=()).digest() != digest
    a, b = (fl.JSONLinesDeserializer(plain, n=fl.Stream(field=field)).digest() for field in ("n", "meta.score"))
    assert a != b  # the same schema, other data
    moved.write_bytes(b'{"a": [1], "b": [2]}\n' * 9)
    streams = {"a": fl.Stream((), "int64"), "b": fl.Stream((), "int64")}
    ragged = [[], ["a"], ["b"], ["a", "b"]]  # the same schema and sizes, other rows with errors
    assert len({fl.JSONLinesDeserializer(moved, streams, sequences=names).digest() for names in ragged}) == 4


def test_several_files_are_one_corpus(tmp_path):
    lines = TEXT.split(b"\n")
    for k, (name, pack) in enumerate(PACKINGS.items()):
        (tmp_path / f"p-{k}.jsonl{name}").write_bytes(pack(b"\n".join(lines[k::5])))
    reports = []
    fl.JSONLinesDeserializer(f"{tmp_path}/p-*", STREAMS, cache=False, progress=lambda *at: reports.append(at))
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert reports == sorted(reports)
    assert reports[-1] == (size, size)
    corpus = fl.open_corpus(f"{tmp_path}/p-*", streams=STREAMS)
    expected = [one for k in range(5) for one in ROWS[k::5]]
    chunks_read = [corpus.read(i)["n"].rows.tolist() for i in range(len(corpus.chunks()))]
    assert [n for part in chunks_read for n in part] == [one["n"] for one in expected]
    check(corpus.select(np.array([399, 0, 200])), [expected[i] for i in (399, 0, 200)])


def test_converted(path, tmp_path):
    done = fl.convert(str(path), tmp_path / "store", streams=STREAMS)
    assert done.sequences == len(ROWS)
    check(fl.StoreDeserializer(tmp_path / "store").select(np.arange(len(ROWS))), ROWS)


# ---- damage ---------------------------------------------------------------------------------------------


def test_a_file_that_changes_while_open(path):
    corpus = opened(path, cache=False)
    before = path.read_bytes()
    try:
        path.write_bytes(before[: len(before) // 2])
        with pytest.raises(fl.DataError, match=r"truncated|has changed since"):
            for i in range(len(corpus.chunks())):
                corpus.read(i)
    finally:
        path.write_bytes(before)


def test_the_index_is_kept_and_checked(path):
    for old in path.parent.glob("*.feedline-index"):
        old.unlink()
    built = []
    for number in range(3):
        opened(path, progress=lambda done, total, number=number: built.append(number)).read(0)
    assert set(built) == {0}
    (index,) = path.parent.glob("*.feedline-index")
    content, rebuilt = index.read_bytes(), 0
    for at in random.Random(1).sample(range(len(content)), 30):
        index.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        corpus = opened(path)
        rows = [n for i in range(len(corpus.chunks())) for n in corpus.read(i)["n"].rows.tolist()]
        assert rows == [one["n"] for one in ROWS]
        rebuilt += index.read_bytes() == content
    assert rebuilt > 10


def test_chunks_of_fetched_bytes(path):
    """Bytes fetched for the parser equal the bytes that it would read. Some chunks cross from one span to the next."""
    corpus = opened(path, chunk_size=700)
    data = path.read_bytes()
    for i in range(len(corpus.chunks())):
        (extent,) = corpus.extents(i)
        piece = memoryview(data[extent.offset : extent.offset + extent.size])
        assert len(piece) == extent.size
        assert corpus.read_fetched(i, [piece]).values == corpus.read(i).values
        assert corpus.read_fetched(i, [Unread(5, extent.offset)]).values == corpus.read(i).values
    with pytest.raises(IndexError, match="expected a chunk from 0"):
        corpus.read(len(corpus.chunks()))
    with pytest.raises(IndexError, match="expected ordinals from 0 to 399, got 400"):
        corpus.select(np.array([400]))


def test_a_key_that_no_name_can_be(tmp_path):
    """Half a surrogate is no text, so no stream is named after it."""
    (tmp_path / "a.jsonl").write_text('{"x\\ud800": 1}\n' * 3)
    with pytest.raises(fl.FeedlineError, match="UTF-8"):
        fl.JSONLinesDeserializer(tmp_path / "a.jsonl")


def test_a_huge_row_of_a_small_file_is_refused_before_it_is_made(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wb", 9) as file:
        file.write(b'{"i": 1' + b" " * (65 << 20) + b"}\n")
    for stream in (fl.Stream((), "int64"), fl.Stream(dtype="str")):
        with pytest.raises(fl.DataError, match="expected rows of at most 67108864 bytes"):
            fl.JSONLinesDeserializer(path, i=stream, cache=False)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"t":"' + "x" * (5 << 20) + '"}\n{"t":"y"}\n', "expected a row that ends within 4194304 bytes"),
        ('[{"a":1},{"a":2}]\n', r"expected a JSON object .* got `\[{"),
    ],
)
def test_why_no_streams_are_inferred(tmp_path, text, told):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(fl.DataError, match=told):
        fl.open_corpus(path)
