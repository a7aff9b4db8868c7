"""CSV: values, laws, damage, in that order."""

import csv
import gzip
import io
import pickle
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.feed.formats import csv as module
from feedline.feed.formats.indexed.rows import parser_fields
from feedline.testing import assert_resumes, bytes_digest, sequences_of
from tests.effort import examples
from tests.oracles.rows import BAD, csv_cell, csv_rows

NAMES = ["id", "a", "b", "label", "name"]
NAMES_OF_ROWS = ['q"uo"te', "two\nlines", "pl,ain", "", "é", 'ends in "', "\r\n"]
ROWS = [(i, i / 7, -1.5 * i, i % 3, NAMES_OF_ROWS[i % 7]) for i in range(500)]


def text_of(rows, **options):
    out = io.StringIO()
    csv.writer(out, **options).writerows(rows)
    return out.getvalue().encode()


TEXT = text_of([NAMES, *ROWS])
STREAMS = {"x": ["a", "b"], "y": fl.Stream((), "int32", field="label"), "name": fl.Stream(dtype="str")}


@pytest.fixture(params=["", ".gz", ".zst"])
def table(request, tmp_path):
    path = tmp_path / f"t.csv{request.param}"
    pack = {"": bytes, ".gz": gzip.compress, ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True)}
    path.write_bytes(pack[request.param](TEXT))
    return path


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # lists of skipped rows are written here


@pytest.fixture
def write(tmp_path):
    def write(text, **options):
        path = tmp_path / "w.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return fl.CSVDeserializer(path, cache=False, **options)

    return write


def chunks_of(corpus):
    return [corpus.read(i) for i in range(len(corpus.chunks()))]


# ---- values ---------------------------------------------------------------------------------------------


def test_values_match_the_csv_module(table):
    corpus = fl.CSVDeserializer(table, STREAMS, chunk_size=2000)
    assert corpus.schema == fl.Schema({"x": fl.Stream(2, "float64"), "y": STREAMS["y"], "name": fl.Stream(dtype="str")})
    for again in (corpus, pickle.loads(pickle.dumps(corpus))):
        chunks = chunks_of(again)
        assert len(chunks) > 5
        assert [row for c in chunks for row in c["x"].rows.tolist()] == [[row[1], row[2]] for row in ROWS]
        assert [row for c in chunks for row in c["y"].rows.tolist()] == [row[3] for row in ROWS]
        assert [row for c in chunks for row in c["name"].tolist()] == [row[4] for row in ROWS]
        assert not any(c.errors for c in chunks)
    picked = corpus.select(np.array([499, 3, 3]))
    assert picked["name"].tolist() == [ROWS[i][4] for i in (499, 3, 3)]


def test_by_path(table):
    corpus = fl.open_corpus(table)
    assert {name: stream.dtype.name for name, stream in corpus.schema.items()} == {
        "id": "int64",
        "a": "float64",
        "b": "float64",
        "label": "int64",
        "name": "str",
    }
    loader = fl.DataLoader(str(table), batch_size=100)
    assert [i for batch in loader for i in batch["id"].tolist()] == [row[0] for row in ROWS]
    assert fl.open_corpus(table, streams={"z": "label"}).schema == fl.Schema({"z": fl.Stream((), "int64")})
    with pytest.raises(fl.SchemaError, match="expected the columns q for stream `z`"):
        fl.open_corpus(table, streams={"z": ["a", "q"]})


def test_vectors_by_pattern_and_by_name(write):
    text = "label,pixel0,pixel1,pixel10\n1,2,3,4\n5,6,7,8\n"
    for options in (
        {"x": fl.Stream(3, "uint8", field="pixel*")},
        {"x": fl.Stream((3, 1), "uint8"), "columns": {"x": ["pixel0", "pixel1", "pixel10"]}},
    ):
        assert write(text, **options).read(0)["x"].rows.reshape(2, 3).tolist() == [[2, 3, 4], [6, 7, 8]]
    turned = write(text, x=fl.Stream(2), columns={"x": ["pixel10", "label"]}).read(0)["x"].rows
    assert turned.tolist() == [[4, 1], [8, 5]]
    assert write(text.partition("\n")[2], streams={"x": ["3", "0"]}).read(0)["x"].rows.tolist() == [[4, 1], [8, 5]]
    for options, message in (
        ({"x": fl.Stream(4, field="pixel*")}, "expected 4 columns"),
        ({"x": fl.Stream(4, field="q*")}, r"columns that match 'q\*'"),
        ({"x": fl.Stream(2), "columns": {"y": ["label"]}}, "columns that match 'x'"),
        ({"label": fl.Stream(), "columns": {"y": ["label"]}}, "got it for y"),
        ({"x": "label", "y": "label"}, "a column in one stream, got 'label'"),
        ({"label": fl.Stream(3, sparse=True), "columns": {"label": ["label", "pixel0", "pixel1"]}}, "sparse"),
    ):
        with pytest.raises(fl.SchemaError, match=message):
            write(text, **options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n1,x\n", {"a": "int64", "b": "str"}),
        ("1,2.5\n3,4\n", {"0": "int64", "1": "float64"}),
        ("a;b\n1;true\n2;False\n", {"a": "int64", "b": "bool"}),
        ("a\tb\n1\t\n\t2\n", {"a": "int64", "b": "int64"}),
        ("a|b\n1e5|nan\n-.5|inf\n", {"a": "float64", "b": "float64"}),
        ("a\n18446744073709551615\n", {"a": "uint64"}),
        ("a\n18446744073709551616\n", {"a": "float64"}),
        ("a\n-1\n18446744073709551615\n", {"a": "float64"}),
        ('"a,""b""",c\n"1",2\n', {'a,"b"': "int64", "c": "int64"}),
        ("\ufeffa,b\n1,\n", {"a": "int64", "b": "str"}),
    ],
)
def test_what_the_first_rows_show(write, text, expected):
    assert {name: stream.dtype.name for name, stream in write(text).schema.items()} == expected


def parsed(text, delimiter, kinds):
    """(values, or BAD) by row, from the kernels alone, with the text in blocks of 7 bytes."""
    schema = fl.Schema({f"c{k}": fl.Stream(dtype=kind) for k, kind in enumerate(kinds)})
    indexer = _native.RowIndexer.csv(ord(delimiter), 0, 1 << 20)
    block = np.frombuffer(text, np.uint8)
    batches = [indexer.feed(block[i : i + 7]) for i in range(0, len(block), 7)]
    entries = np.concatenate([*batches, indexer.finish()])
    buffer = np.full(len(text) + 128, ord("1"), np.uint8)
    buffer[64:-64] = block
    fields = parser_fields(schema, frozenset(), memory_bytes=1 << 30, what="CSV")
    parser = _native.CsvParser(fields, [(k, 0) for k in range(len(kinds))], ord(delimiter), 1 << 30)
    arrays, errors = parser.parse(buffer, 64, entries, 0)
    bad = set(errors.view("<u4").reshape(-1, 8)[:, 6].tolist())
    columns = []
    for stream, (data, bounds, _, _) in zip(schema.values(), arrays, strict=True):
        value = fl.Value.from_buffer(data, bounds, "str").tolist() if stream.is_bytes else data.view(stream.dtype)
        columns.append(list(value))
    return [BAD if i in bad else list(row) for i, row in enumerate(zip(*columns, strict=True))]


cells = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.text(alphabet='ab"\n,;\t é1.', max_size=6),
    st.sampled_from(
        ["", " 12 ", "+1", "-0", ".5", "5.", "1e5", "1e", "e5", "--1", "true", "FALSE", "nan", "-Infinity"]
    ),
    st.sampled_from(["9223372036854775807", "9223372036854775808", "-9223372036854775808", "255", "256", "1" * 400]),
)
dtypes = st.sampled_from(["str", "float64", "float32", "int64", "int32", "uint8", "uint64", "bool"])


@given(data=st.data())
@settings(max_examples=examples(75))
def test_any_table_is_read_as_by_the_csv_module(data):
    kinds = data.draw(st.lists(dtypes, min_size=1, max_size=4))
    rows = data.draw(st.lists(st.lists(cells, min_size=1, max_size=len(kinds) + 1), max_size=5))
    delimiter = data.draw(st.sampled_from(",;\t"))
    quoting = data.draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    text = text_of(
        rows, delimiter=delimiter, quoting=quoting, lineterminator=data.draw(st.sampled_from(["\n", "\r\n"]))
    )
    if data.draw(st.booleans()):  # quotes where no writer puts them
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from([b'"', b'""', b"\n", b',"', b'";'])) + text[at:]
    if b"\r" in text.replace(b"\r\n", b""):
        return  # alone it ends a row in Python, and none here
    try:
        decoded = text.decode()
        expected = csv_rows(decoded, delimiter)
    except (UnicodeDecodeError, csv.Error):
        return
    results = parsed(text, delimiter, kinds)
    # Python reads on if a quote is open at the end. Here the row is unreadable.
    open_quote = bool(expected) and _is_open(decoded, delimiter)
    assert len(results) == len(expected)
    for i, (row, cells_of_row) in enumerate(zip(results, expected, strict=True)):
        if open_quote and i == len(expected) - 1:
            assert row is BAD
            continue
        if len(cells_of_row) != len(kinds):
            assert row is BAD, (text, row)
            continue
        expected_values = [csv_cell(cell, np.dtype(kind)) for cell, kind in zip(cells_of_row, kinds, strict=True)]
        if any(one is BAD for one in expected_values):
            assert row is BAD, (text, row, expected_values)
            continue
        assert row is not BAD, (text, expected_values)
        for got, want, kind in zip(row, expected_values, kinds, strict=True):
            with np.errstate(over="ignore"):
                same = (
                    got == want if kind == "str" else np.array_equal(got, np.array(want, kind), equal_nan="f" in kind)
                )
            assert same, (text, got, want)


def _is_open(text, delimiter):
    try:
        list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        return "unexpected end of data" in str(error) or _open_by_hand(text, delimiter)
    return False


def _open_by_hand(text, delimiter):
    """Whether the text ends within quotes, where strictness stumbles over something else first."""
    quoted, before, k = False, "\n", 0
    while k < len(text):
        c = text[k]
        if quoted and c == '"':
            if text[k + 1 : k + 2] == '"':
                k += 1
            else:
                quoted = False
        elif not quoted and c == '"' and before in ("\n", delimiter):
            quoted = True
        before = c
        k += 1
    return quoted


def test_the_digest_covers_the_content(tmp_path):
    """The same text and schema, but other cells in the stream."""
    path = tmp_path / "a.csv"
    path.write_text("a;b,c\n1;2,3\n")
    opened = [
        fl.CSVDeserializer(path, x=fl.Stream(dtype="str"), columns={"x": [column]}, delimiter=delimiter)
        for column, delimiter in (("a", ";"), ("b,c", ";"), ("a;b", ","), ("c", ","))
    ]
    assert [corpus.read(0)["x"].tolist() for corpus in opened] == [["1"], ["2,3"], ["1;2"], ["3"]]
    assert len({corpus.digest() for corpus in opened}) == len(opened)


# ---- laws -----------------------------------------------------------------------------------------------


def test_one_order_parts_and_resume(table):
    def source(**options):
        corpus = fl.CSVDeserializer(table, STREAMS, chunk_size=2000)
        return fl.MinibatchSource(corpus, **{"seed": 5, "max_sweeps": 2, "shuffle": fl.Window(chunks=2), **options})

    assert len({bytes_digest(source().minibatches(size)) for size in (11, 90)}) == 1
    assert_resumes(source, sizes=(40,))
    unpartitioned, parts = source(), [source(partition=(i, 3)) for i in range(3)]
    for minibatch in unpartitioned.minibatches(50):
        delivered = [one for part in parts for one in sequences_of([part.next_minibatch(50)])]
        assert delivered == sequences_of([minibatch])


@pytest.mark.filterwarnings("ignore:expected at most")
def test_workers(table):
    for workers in (2, 3):
        loader = fl.DataLoader(fl.CSVDeserializer(table, STREAMS, chunk_size=3000), batch_size=64, num_workers=workers)
        assert [name for batch in loader for name in batch["name"]] == [row[4] for row in ROWS]


def test_several_files_have_the_same_columns(tmp_path):
    for k in range(3):
        (tmp_path / f"{k}.csv").write_bytes(text_of([NAMES, *ROWS[k::3]]))
    corpus = fl.open_corpus(f"{tmp_path}/{{0..2}}.csv")
    assert [i for c in chunks_of(corpus) for i in c["id"].rows.tolist()] == [
        i for k in range(3) for i in range(k, 500, 3)
    ]
    (tmp_path / "1.csv").write_text("id,b,a,label,name\n1,2,3,4,5\n")
    with pytest.raises(fl.DataError, match=r"expected the columns id, a, b, label, name, as in .*0\.csv, got id, b"):
        fl.open_corpus(f"{tmp_path}/*.csv")


# ---- damage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,2", "expected 3 cells, got 2"),
        ("1,2,3,4,5", "expected 3 cells, got 5"),
        ("1,,x", r"a number in column 'b' \(2\), got an empty cell"),
        ("1.0,2,x", r"an integer in column 'a' \(1\), got `1.0`"),
        ("300,2,x", r"an integer of uint8 in column 'a' \(1\), got `300`"),
        ("1,2x,x", r"a number in column 'b' \(2\), got `2x`"),
        ('"1x",2,x', r"""an integer in column 'a' \(1\), got `"1x",2,x`"""),
        ("1,2,\udcff", r"UTF-8 in column 'c' \(3\), got the byte 0xff"),
    ],
)
def test_a_bad_row_is_one_unreadable_sequence(write, row, message):
    text = f'a,b,c\n0,0,"two\nlines"\n{row}\n3,4,z\n'.encode("utf-8", "surrogateescape")
    corpus = write(text, a=fl.Stream((), "uint8"), b=fl.Stream(), c=fl.Stream(dtype="str"))
    chunk = corpus.read(0)
    assert list(chunk.errors) == [1]
    with pytest.raises(fl.DataError, match=message):
        raise chunk.errors[1]
    assert (chunk.errors[1].line, chunk.errors[1].sequence) == (4, 1)
    assert chunk["b"].rows[2] == 4
    source = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, on_error="skip")
    assert [n for m in source.minibatches(9) for n in m["a"].rows.tolist()] == [0, 3]


def test_a_quote_that_nothing_closes(write, monkeypatch):
    text = 'a,b\n1,2\n3,"4\n' + "5,6\n" * 100
    chunk = write(text, a=fl.Stream(), b=fl.Stream()).read(0)
    assert list(chunk.errors) == [1]
    assert "a quote that closes the cell in column 'b'" in str(chunk.errors[1])
    monkeypatch.setattr(module, "MAX_ROW", 200)
    with pytest.raises(fl.DataError, match=r"rows of at most .*\n.*byte 8.*\n.*quote never close"):
        write(text, a=fl.Stream(), b=fl.Stream())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one row"),
        ("a,b\n", "at least one row"),
        ("a,a\n1,2\n", "got twice: a"),
        (b"a,b\xff\n1,2\n", r"names of columns in UTF-8, got b'b\\xff'"),
        ("a\n1\n".encode("utf-16"), "UTF-16|NUL|line contains"),
    ],
)
def test_impossible_text(write, text, message):
    with pytest.raises(fl.DataError, match=message):
        write(text)


def test_wrong_arguments(table):
    for delimiter in ("", ",,", "1", '"', "\n", "é", "-"):
        with pytest.raises(ValueError, match="as delimiter"):
            fl.CSVDeserializer(table, delimiter=delimiter)
    with pytest.raises(fl.SchemaError, match="the columns z for stream `x`"):
        fl.CSVDeserializer(table, {"x": ["a", "z"]})
    with pytest.raises(fl.SchemaError, match="got text; a stream of text has one column"):
        fl.CSVDeserializer(table, {"x": ["a", "name"]})
    with pytest.raises(fl.SchemaError, match="each stream once, got x"):
        fl.CSVDeserializer(table, {"x": "a"}, x="b")
    with pytest.raises(fl.DataError, match="No such file"):
        fl.CSVDeserializer(table.parent / "none.csv")


def test_flipped_bytes_of_packed_tables(tmp_path):
    """Are noticed when the file is indexed, or change nothing."""
    for name, packed in (
        ("a.csv.gz", gzip.compress(TEXT)),
        ("a.csv.zst", pa.compress(TEXT, codec="zstd", asbytes=True)),
    ):
        draw = random.Random(4)
        for _ in range(examples(30)):
            damaged = bytearray(packed)
            for _ in range(draw.choice([1, 1, 3])):
                damaged[draw.randrange(len(packed))] ^= 1 << draw.randrange(8)
            (tmp_path / name).write_bytes(damaged[: draw.choice([len(packed), draw.randrange(len(packed))])])
            try:
                corpus = fl.CSVDeserializer(tmp_path / name, {"id": fl.Stream((), "int64")}, cache=False)
                ids = [i for c in chunks_of(corpus) if not c.errors for i in c["id"].rows.tolist()]
            except (fl.DataError, fl.SchemaError):
                continue
            if not name.endswith("zst"):  # pyarrow's frames have no checksums
                assert ids == [row[0] for row in ROWS]


def test_the_first_rows_are_cut_as_by_python():
    draw = random.Random(3)
    for _ in range(examples(1500)):
        parts = (draw.choice(['"', '""', ",", "\n", "\r\n", "a", "1", " ", "é"]) for _ in range(draw.randrange(14)))
        text = "".join(parts)
        theirs = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
        assert module._rows(text, ",", True)[0] == theirs, text


def test_long_cells_among_the_first_rows(tmp_path):
    """Python's own reader refuses more than 128 KiB."""
    cells = ["x" * 200_000, 'y"\n' * 100_000]
    with open(tmp_path / "t.csv", "w", newline="") as file:
        csv.writer(file).writerows([["n", "text"], *enumerate(cells)])
    corpus = fl.CSVDeserializer(tmp_path / "t.csv")
    assert [stream.dtype.name for stream in corpus.schema.values()] == ["int64", "str"]
    assert corpus.read(0)["text"].tolist() == cells


def test_columns_without_a_name_are_named_by_their_place(tmp_path):
    """The index that pandas writes, and the column after a last delimiter."""
    path = tmp_path / "a.csv"
    path.write_text(",x,\n0,1,\n1,2,\n")
    corpus = fl.open_corpus(path)
    assert dict(corpus.schema) == {
        "Unnamed: 0": fl.Stream((), "int64"),
        "x": fl.Stream((), "int64"),
        "Unnamed: 2": fl.Stream(dtype="str"),
    }
    assert corpus.read(0)["Unnamed: 0"].tolist() == [0, 1]


def test_made_up_names_are_no_names_of_the_table(write):
    assert list(write(",Unnamed: 0,x\n0,1,2\n").schema) == ["Unnamed: 0.1", "Unnamed: 0", "x"]
    assert "Unnamed: 0.1.1" in write(",Unnamed: 0.1,Unnamed: 0,\n0,1,2,3\n").schema


@pytest.mark.parametrize("line", ["sep=;\r\n", '"sep=,"\n', "SEP=\t\n"])
def test_a_line_with_the_delimiter_for_excel_is_no_header(write, line):
    with pytest.raises(fl.DataError, match="Excel"):
        write(line + "a;b\n1;2\n")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_refused(tmp_path, encoding):
    (tmp_path / "x.csv").write_bytes("a,b\n1,2\n".encode(encoding))
    with pytest.raises(fl.DataError, match="UTF-16"):
        fl.CSVDeserializer(tmp_path / "x.csv")


@pytest.mark.parametrize(
    "text", ["a,b\r1,2\r3,4\r", "a,b\r1,2\n3,4\n", "a\rb\n", "a;b\r1;2\r3;4", '"a","b"\r"1","2"\r']
)
def test_lines_that_end_in_a_carriage_return_alone_are_refused(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    with pytest.raises(fl.DataError, match=r"expected lines that end in .*\\r alone") as caught:
        fl.open_corpus(path)
    assert caught.value.byte == text.index("\r")
    assert "tr " in caught.value.hint


@pytest.mark.parametrize("row", [b"a\rb", b'"a"\rb', b"\ra", b"a\r\r\n"])
def test_a_line_that_ends_in_a_carriage_return_alone_after_the_first_rows_is_a_bad_row(tmp_path, row):
    """With one column of text nothing else shows it: the number of cells stays the same."""
    (tmp_path / "a.csv").write_bytes(b"text\n" + b"x\n" * 300 + row + b"\nz\n")
    with pytest.raises(fl.DataError, match=r"expected lines that end in .*\\r alone in column 'text'") as caught:
        list(fl.MinibatchSource(fl.open_corpus(tmp_path / "a.csv"), shuffle=False, max_sweeps=1).minibatches(400))
    assert (caught.value.line, caught.value.byte) == (302, 5 + 2 * 300)
    assert "tr " in caught.value.hint


def test_carriage_returns_in_quotes_and_before_line_feeds_are_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'a,b\r\n1,"x\ry"\r\n2,z\r\n')
    assert fl.open_corpus(path).read(0)["b"].tolist() == ["x\ry", "z"]


def test_more_bad_rows_than_are_described_at_once(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x\n" + "1\n" * 200 + "".join(f"b{i}\n" for i in range(3000)))
    chunk = fl.open_corpus(path, streams={"x": fl.Stream((), "int64")}).read(0)
    assert list(chunk.errors) == list(range(200, 3200))
    assert chunk.errors[3199].line == 3201
    assert "`b2999`" in str(chunk.errors[3199])
    assert chunk["x"].rows[:200].tolist() == [1] * 200
