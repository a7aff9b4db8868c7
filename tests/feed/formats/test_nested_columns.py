"""Values within structs and lists of structs, by path, as the columns' own Python values say."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow.parquet as pq  # noqa: E402

import feedline as fl  # noqa: E402
from feedline.cli.arguments import DEFAULT_CHUNK_SIZE  # noqa: E402
from feedline.cli.corpus import open_path  # noqa: E402
from feedline.cli.inspect import describe  # noqa: E402
from feedline.testing import assert_resumes  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.feed.formats.shard_writers import write_litdata_rows  # noqa: E402

TEXT = st.text(st.characters(codec="utf-8"), max_size=4)

#: By name: Arrow type, values, dtype, and the value that fills.
LEAVES = {
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1), "int32", 7),
    "float": (pa.float64(), st.floats(allow_nan=False), "float64", -1.5),
    "narrow": (pa.float32(), st.floats(width=32, allow_nan=False), "float32", 0.25),
    "bool": (pa.bool_(), st.booleans(), "bool", True),
    "text": (pa.string(), TEXT, "str", "?"),
    "wide text": (pa.large_string(), TEXT, "str", ""),
    "viewed text": (pa.string_view(), TEXT, "str", "view"),
    "category": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "bc", ""]), "str", "fill"),
    "pair": (pa.list_(pa.int16(), 2), st.lists(st.integers(-9, 9), min_size=2, max_size=2), "int16", 3),
}
LISTS = {
    "list": pa.list_,
    "large list": pa.large_list,
    "list view": pa.list_view,
    "large list view": pa.large_list_view,
    "fixed list": lambda item: pa.list_(item, 2),
}
KEYS = st.sampled_from(["a", "b", "c.d", "e[]", "häß", 'q"', "bytes"])
FORMS = ["parquet", "arrow", "arrow compressed"]


def optional(values):
    return st.one_of(st.none(), values)


@st.composite
def types(draw, depth=0, in_list=False):
    """An Arrow type, values of it, and the paths to its leaves: (steps, name of the leaf)."""
    nested = ["struct", *([] if in_list else LISTS)]
    kind = draw(st.sampled_from([*LEAVES, *nested * 3] if 0 < depth < 3 else list(LEAVES) if depth else nested))
    if kind in LEAVES:
        arrow, values, _, _ = LEAVES[kind]
        return arrow, optional(values), [([], kind)]
    if kind == "struct":
        fields = {key: draw(types(depth + 1, in_list)) for key in draw(st.sets(KEYS, min_size=1, max_size=3))}
        arrow = pa.struct([(key, field[0]) for key, field in fields.items()])
        values = st.fixed_dictionaries({key: field[1] for key, field in fields.items()})
        paths = [([key, *steps], leaf) for key, field in fields.items() for steps, leaf in field[2]]
        return arrow, optional(values), paths
    item, values, paths = draw(types(depth + 1, in_list=True))
    sizes = {"min_size": 2, "max_size": 2} if kind == "fixed list" else {"max_size": 3}
    return LISTS[kind](item), optional(st.lists(values, **sizes)), [([None, *steps], leaf) for steps, leaf in paths]


def escaped(key):
    key = key.replace("\\", "\\\\").replace(".", "\\.")
    return key.replace("[]", "\\[]") if key.endswith("[]") else key


def path_of(steps):
    return "x" + "".join("[]" if step is None else f".{escaped(step)}" for step in steps)


def at(value, steps):
    """The value at the end of a path, or None if any on the way is."""
    if not steps or value is None:
        return value
    return [at(item, steps[1:]) for item in value] if steps[0] is None else at(value[steps[0]], steps[1:])


def fill(item, leaf):
    """A sample with its missing values filled, and whether all of it was there."""
    value = LEAVES[leaf][3]
    if leaf == "pair":
        return ([value] * 2, False) if item is None else (item, True)
    return (value, False) if item is None else (item, True)


def write(folder, form, array):
    table = pa.table({"row": pa.array(range(len(array))), "x": array})
    path = folder / f"data.{form.split()[0]}"
    if form == "parquet":
        if "string_view" in str(array.type):
            assume(False)  # Arrow cannot write these in structs
        pq.write_table(table, path, row_group_size=3)
        return path
    options = pa.ipc.IpcWriteOptions(compression="lz4" if "compressed" in form else None)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=3)
    return path


def made(rows, kind):
    """An array. Arrow makes an invalid one of structs that are all null and have a dictionary."""
    array = pa.array(rows, kind)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        assume(False)
    return array


def plain(sequence):
    return sequence.tolist() if isinstance(sequence, np.ndarray) else sequence


def read_all(corpus):
    """The sequences of every stream by row, and the rows that cannot be read. Checks that lengths agree."""
    values, bad, first = {name: [] for name in corpus.schema}, [], 0
    lengths = corpus.lengths(np.arange(sum(info.sequences for info in corpus.chunks())))
    for number, info in enumerate(corpus.chunks()):
        chunk = corpus.read(number)
        bad += [first + i for i in chunk.errors]
        for name, value in chunk.values.items():
            values[name] += [plain(sequence) for sequence in value.sequences()]
        if lengths is not None:
            longest = np.max([value.lengths for value in chunk.values.values()], axis=0)
            good = np.setdiff1d(np.arange(info.sequences), list(chunk.errors))
            assert lengths[first : first + info.sequences][good].tolist() == longest[good].tolist()
        first += info.sequences
    return values, bad


def declare(steps, leaf, **options):
    shape = 2 if leaf == "pair" else ()
    return fl.Stream(shape, LEAVES[leaf][2], field=path_of(steps), **options)


def assert_values(path, rows, steps, leaf):
    """Assert what a corpus delivers at a path: filled with a mask, and without either."""
    streams = {"row": fl.Stream((), "int64"), "v": declare(steps, leaf, missing=LEAVES[leaf][3], mask=True)}
    values, bad = read_all(fl.open_corpus(path, streams=streams))
    leaves = [at(row, steps) for row in rows]
    ragged = None in steps
    samples = [[fill(item, leaf) for item in (row or [] if ragged else [row])] for row in leaves]
    expected = [[value for value, _ in row] for row in samples]
    present = [[there for _, there in row] for row in samples]
    assert values["v"] == expected
    assert values["v_present"] == present
    assert values["row"] == [[i] for i in range(len(rows))]
    assert bad == []
    values, bad = read_all(fl.open_corpus(path, streams={"v": declare(steps, leaf)}))
    whole = [row is not None and (not ragged or None not in row) for row in leaves]
    assert bad == [i for i, there in enumerate(whole) if not there]
    got = [value for value, there in zip(values["v"], whole, strict=True) if there]
    plain_rows = [row if ragged else [row] for row in leaves]
    assert got == [row for row, there in zip(plain_rows, whole, strict=True) if there]


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_values_at_any_path(tmp_path_factory, form, data):
    kind, values, paths = data.draw(types())
    rows = data.draw(st.lists(values, min_size=1, max_size=7))
    before = data.draw(st.lists(values, max_size=2))
    array = made([*before, *rows], kind)[len(before) :]
    path = write(tmp_path_factory.mktemp("data"), form, array)
    steps, leaf = data.draw(st.sampled_from(paths))
    if steps != []:
        assert_values(path, array.to_pylist(), steps, leaf)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_a_nested_column_as_json(tmp_path_factory, form, data):
    kind, values, _ = data.draw(types())
    rows = data.draw(st.lists(values, min_size=1, max_size=7))
    array = made(rows, kind)
    path = write(tmp_path_factory.mktemp("data"), form, array)
    values, bad = read_all(fl.open_corpus(path, streams={"x": fl.Stream(dtype="bytes")}))
    expected = array.to_pylist()
    assert bad == [i for i, row in enumerate(expected) if row is None]
    assert [json.loads(text) for i, (text,) in enumerate(values["x"]) if i not in bad] == [
        row for row in expected if row is not None
    ]
    filled = fl.Stream(dtype="bytes", missing=b"[]", mask=True)
    values, bad = read_all(fl.open_corpus(path, streams={"x": filled}))
    assert bad == []
    assert [json.loads(text) for (text,) in values["x"]] == [[] if row is None else row for row in expected]
    assert values["x_present"] == [[row is not None] for row in expected]


def test_json_text_is_what_python_reads(tmp_path):
    rows = [
        {"f": 1.0, "g": 0.1, "t": 'a"\\\n\r\t\b\f\x00\x1f\x7fä\U0001f642', "n": None, "l": [[1], None, []]},
        {"f": -0.0, "g": 1e300, "t": "", "n": None, "l": []},
        {"f": math.inf, "g": -math.inf, "t": "]", "n": None, "l": None},
    ]
    kind = pa.struct(
        [
            ("f", pa.float32()),
            ("g", pa.float64()),
            ("t", pa.string()),
            ("n", pa.null()),
            ("l", pa.list_(pa.list_(pa.uint8()))),
        ]
    )
    path = write(tmp_path, "parquet", pa.array(rows, kind))
    values, bad = read_all(fl.open_corpus(path, streams={"x": fl.Stream(dtype="bytes")}))
    assert bad == []
    assert [json.loads(text) for (text,) in values["x"]] == rows
    assert values["x"][1] == [b'{"f":-0.0,"g":1e+300,"t":"","n":null,"l":[]}']
    assert values["x"][2][0].startswith(b'{"f":Infinity,"g":-Infinity,')


def hidden():
    """Structs and lists whose nulls hide values: Arrow says nothing about these."""
    items = pa.StructArray.from_arrays(
        [pa.array([1, 2, 3, 4, 5, 6]), pa.array(["a", "b", "c", "d", "e", "f"])],
        ["n", "t"],
        mask=pa.array([False, True, False, False, False, False]),
    )
    lists = pa.ListArray.from_arrays(
        pa.array([0, 2, 3, 5, 6], pa.int32()), items, mask=pa.array([False, False, True, False])
    )
    return pa.StructArray.from_arrays([lists], ["l"], mask=pa.array([True, False, False, False]))


@pytest.mark.parametrize("form", FORMS)
def test_what_nulls_hide_is_not_read(tmp_path, form):
    path = write(tmp_path, form, hidden())
    for steps, leaf in ([["l", None, "t"], "text"], [["l", None, "n"], "int"]):
        dtype, value = ("str", "?") if leaf == "text" else ("int64", -1)
        stream = fl.Stream((), dtype, field=path_of(steps), missing=value, mask=True)
        values, bad = read_all(fl.open_corpus(path, streams={"v": stream}))
        assert values["v"] == [[], ["c"] if leaf == "text" else [3], [], ["f"] if leaf == "text" else [6]]
        assert values["v_present"] == [[], [True], [], [True]]
        assert bad == []
    values, _ = read_all(fl.open_corpus(path, streams={"x": fl.Stream(dtype="bytes", missing=b"", mask=True)}))
    assert values["x"] == [[b""], [b'{"l":[{"n":3,"t":"c"}]}'], [b'{"l":null}'], [b'{"l":[{"n":6,"t":"f"}]}']]


def test_list_views_in_any_order(tmp_path):
    kind = pa.struct([("n", pa.int64()), ("t", pa.string_view())])
    items = pa.array([{"n": i, "t": str(i)} for i in range(5)], kind)
    views = pa.ListViewArray.from_arrays(pa.array([3, 0, 1, 5], pa.int32()), pa.array([2, 3, 2, 0], pa.int32()), items)
    path = write(tmp_path, "arrow", views)
    streams = {"n": fl.Stream((), "int64", field="x[].n"), "t": fl.Stream(dtype="str", field="x[].t")}
    values, _ = read_all(fl.open_corpus(path, streams=streams))
    assert values["n"] == [[3, 4], [0, 1, 2], [1, 2], []]
    assert values["t"] == [["3", "4"], ["0", "1", "2"], ["1", "2"], []]


def test_list_views_that_repeat_much_are_refused(tmp_path):
    count = 2000
    text = pa.array(["x" * 10_000])
    views = pa.ListViewArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([1] * count, pa.int32()), text)
    table = pa.table({"x": views})
    with pa.OSFile(str(tmp_path / "data.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    corpus = fl.ArrowDeserializer(tmp_path / "data.arrow", {"x": fl.Stream(dtype="str")}, memory=10_000_000)
    with pytest.raises(fl.DataError, match=r"at most 10000000 bytes .*memory"):
        corpus.read(0)


CHAT = [
    {
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
        "a.b": 1,
        "a": {"b": 2},
    },
    {"messages": [], "a.b": 3, "a": {"b": 4}},
    {"messages": [{"role": "user", "content": "Bye"}], "a.b": 5, "a": {"b": 6}},
]


@pytest.fixture
def chat(tmp_path):
    pq.write_table(pa.Table.from_pylist(CHAT), tmp_path / "chat.parquet", row_group_size=2)
    return tmp_path / "chat.parquet"


def test_streams_of_one_list_have_the_same_lengths(chat, tmp_path):
    streams = {
        "role": fl.Stream(dtype="str", field="messages[].role"),
        "content": fl.Stream(dtype="str", field="messages[].content"),
        "all": fl.Stream(dtype="bytes", field="messages"),
    }
    corpus = fl.open_corpus(chat, streams=streams)
    assert corpus.lengths(np.arange(3)).tolist() == [2, 1, 1]  # the text of the conversation is a sample
    fl.convert(corpus, tmp_path / "store")
    for made in (corpus, fl.open_corpus(tmp_path / "store")):
        values, bad = read_all(made)
        assert bad == []
        assert values["role"] == [[m["role"] for m in row["messages"]] for row in CHAT]
        assert values["content"] == [[m["content"] for m in row["messages"]] for row in CHAT]
        assert [json.loads(text) for (text,) in values["all"]] == [row["messages"] for row in CHAT]


def test_a_column_of_that_very_name_takes_precedence(chat):
    streams = {"exact": fl.Stream((), "int64", field="a.b")}
    assert read_all(fl.open_corpus(chat, streams=streams))[0]["exact"] == [[1], [3], [5]]
    table = pq.read_table(chat).drop_columns(["a.b"])
    pq.write_table(table, chat)
    assert read_all(fl.open_corpus(chat, streams=streams))[0]["exact"] == [[2], [4], [6]]


def test_only_the_leaves_in_use_are_read(tmp_path):
    rows = [{"x": {"small": i, "large": "x" * 1000 * (i + 1)}} for i in range(50)]
    path = tmp_path / "data.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    sizes = {}
    for field in ("x.small", "x.large", "x"):
        stream = fl.Stream(dtype="bytes" if field == "x" else "str" if "large" in field else "int64", field=field)
        (info,) = fl.open_corpus(path, streams={"v": stream}).chunks()
        sizes[field] = info.bytes
    assert sizes["x.small"] < 2000 < 1_000_000 < sizes["x.large"] < sizes["x"]
    begin = data.index(b"xxxx")
    data[begin : begin + 1_000_000] = bytes(1_000_000)
    path.write_bytes(data)
    values, bad = read_all(fl.open_corpus(path, streams={"n": fl.Stream((), "int64", field="x.small")}))
    assert (values["n"], bad) == ([[i] for i in range(50)], [])


@pytest.mark.parametrize("name", ["chat.parquet", "chat.arrow"])
def test_errors_name_the_paths_that_there_are(chat, name):
    with pa.OSFile(str(chat.parent / "chat.arrow"), "wb") as sink:
        table = pq.read_table(chat)
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    path = chat.parent / name

    def opened(field, **options):
        return fl.open_corpus(path, streams={"x": fl.Stream(field=field, **options)})

    listed = r"which has 'messages\[\]\.(role|content)', 'messages\[\]\.(role|content)', 'a\.b', 'a\.b'"
    for field in ("messages.role", "messages[].text", "messages[][].role", "a.c", "text", "a[]", "a.b[]"):
        with pytest.raises(fl.SchemaError, match="at most one list" if "[][]" in field else listed):
            opened(field)
    with pytest.raises(fl.SchemaError, match=r"by their paths \(messages\[\]\.(role|content), .*dtype=\"bytes\""):
        opened("messages")
    with pytest.raises(
        fl.SchemaError, match=r"expected Stream.*float32.* got Stream\(dtype='str'\) in column 'messages\["
    ):
        opened("messages[].role")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        corpus = fl.open_corpus(path)
    assert list(corpus.schema) == ["a.b"]
    assert "messages[].role" in str(caught[0].message)
    assert sorted(corpus.nested_paths) == ["a.b", "messages[].content", "messages[].role"] or sorted(
        corpus.nested_paths
    ) == ["messages[].content", "messages[].role"]


def test_a_null_on_the_way_names_path_and_row(tmp_path):
    rows = [{"m": [{"c": "a"}]}, {"m": [{"c": "b"}, {"c": None}]}, {"m": [None]}]
    path = tmp_path / "data.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    errors = fl.open_corpus(path, streams={"c": fl.Stream(dtype="str", field="m[].c")}).read(0).errors
    assert sorted(errors) == [1, 2]
    for i, error in errors.items():
        assert (error.sequence, error.stream) == (i, "c")
        assert "null in column 'm[].c'" in str(error)
        assert "missing=" in str(error)


def test_values_without_json_are_refused(tmp_path):
    rows = [{"m": {"good": 1, "data": [b"\0"]}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    with pytest.raises(fl.SchemaError, match=r"got binary at 'm\.data\[\]'; read the other values by their paths"):
        fl.open_corpus(tmp_path / "data.parquet", streams={"m": fl.Stream(dtype="bytes")})


def test_files_may_differ_where_nothing_is_read(tmp_path):
    pq.write_table(pa.table({"m": [{"a": 1, "b": "x"}]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"m": [{"b": 2.5, "c": [1], "a": 2}]}), tmp_path / "2.parquet")
    values, _ = read_all(fl.open_corpus(tmp_path, streams={"a": fl.Stream((), "int64", field="m.a")}))
    assert values["a"] == [[1], [2]]
    with pytest.raises(fl.SchemaError, match=r"same type of column 'm\.b'.*string.*1\.parquet and double.*2\.parquet"):
        fl.open_corpus(tmp_path, streams={"b": fl.Stream(dtype="str", field="m.b")})
    with pytest.raises(fl.SchemaError, match=r"same type of column 'm\.c'|expected a column 'm\.c'"):
        fl.open_corpus(tmp_path, streams={"c": fl.Stream((), "int64", field="m.c")})


@st.composite
def json_rows(draw):
    """Rows as JSON objects, in which keys of nulls may be absent."""
    message = st.fixed_dictionaries({"t": optional(TEXT), "n": optional(st.integers(-9, 9)), "v": st.just([1, 2])})
    row = st.fixed_dictionaries({"m": optional(st.fixed_dictionaries({"l": optional(st.lists(optional(message)))}))})
    return draw(st.lists(row, min_size=1, max_size=6))


def lines_of(rows, absent):
    def without(value):
        if isinstance(value, dict):
            return {k: without(v) for k, v in value.items() if v is not None or not absent()}
        return [without(item) for item in value] if isinstance(value, list) else value

    return "\n".join(json.dumps({"row": i, "skipped": [{"t": 1}], **without(row)}) for i, row in enumerate(rows))


ITEMS = {"t": ("str", "?"), "n": ("int8", 7), "v": ("int8", 3)}


@settings(max_examples=examples(40))
@given(rows=json_rows(), data=st.data())
def test_values_of_objects_in_json(tmp_path_factory, rows, data):
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    path.write_text(lines_of(rows, lambda: data.draw(st.booleans())))
    leaves = {key: [at(row["m"], ["l", None, key]) for row in rows] for key in ITEMS}
    streams = {
        key: fl.Stream(2 if key == "v" else (), dtype, field=f"m.l[].{key}", missing=value, mask=True)
        for key, (dtype, value) in ITEMS.items()
    }
    values, bad = read_all(fl.JSONLinesDeserializer(path, {"row": fl.Stream((), "int64"), **streams}, cache=False))
    assert bad == []
    for key, (_, value) in ITEMS.items():
        whole = [2 * [value] if key == "v" else value][0]
        assert values[key] == [[whole if item is None else item for item in row or []] for row in leaves[key]]
        assert values[f"{key}_present"] == [[item is not None for item in row or []] for row in leaves[key]]
        stream = fl.Stream(streams[key].shape, streams[key].dtype, field=streams[key].field)
        values_or_errors, bad = read_all(fl.JSONLinesDeserializer(path, {key: stream}, cache=False))
        there = [row is not None and None not in row for row in leaves[key]]
        assert bad == [i for i, good in enumerate(there) if not good]
        got = [row for row, good in zip(values_or_errors[key], there, strict=True) if good]
        assert got == [row for row, good in zip(leaves[key], there, strict=True) if good]


def test_json_lines_and_columns_agree(chat, tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(json.dumps({"messages": row["messages"]}) for row in CHAT))
    for field in ("messages[].role", "messages[].content"):
        streams = {"x": fl.Stream(dtype="str", field=field)}
        assert read_all(fl.open_corpus(path, streams=streams)) == read_all(fl.open_corpus(chat, streams=streams))
    streams = {"x": fl.Stream(dtype="bytes", field="messages")}
    texts, columns = (read_all(fl.open_corpus(opened, streams=streams))[0]["x"] for opened in (path, chat))
    assert [json.loads(text) for (text,) in texts] == [json.loads(text) for (text,) in columns]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"m": [{"c": "a"}, {"d": 1}]}', "expected the key `m[].c`"),
        ('{"m": [{"c": "a", "c": "b"}]}', "expected a key once"),
        ('{"m": [], "m": [{"c": "b"}]}', "expected a key once"),
        ('{"m": [{"c": "a"}, null]}', "expected an object for stream `c`, got null"),
        ('{"m": [{"c": "a"}, 1]}', "expected an object for stream `c`, got `1]}`"),
        ('{"m": {"c": "a"}}', "expected a list for stream `c`"),
        ('{"m": null}', "expected a list for stream `c`, got null"),
        ('{"m": [{"c": "a"} {"c": "b"}]}', "expected JSON, got"),
        ('{"m": [{"c": ["a"]}]}', "expected a string for stream `c`"),
        ("{}", "expected the key `m[].c`"),
    ],
)
def test_a_bad_list_of_objects_is_one_unreadable_row(tmp_path, line, message):
    good = '{"m": [{"c": "x"}, {"e": {"c": 1}, "c": "y"}]}'
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join([good, line, good]))
    corpus = fl.open_corpus(path, streams={"c": fl.Stream(dtype="str", field="m[].c")})
    values, bad = read_all(corpus)
    assert bad == [1]
    assert values["c"][::2] == [["x", "y"]] * 2
    assert message in str(corpus.read(0).errors[1])


def test_paths_that_json_refuses(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"m": [{"c": [{"d": 1}]}], "n[]": 1}')

    def opened(*fields):
        return fl.open_corpus(path, streams={f"s{i}": fl.Stream(field=field) for i, field in enumerate(fields)})

    with pytest.raises(fl.SchemaError, match=r"at most one list.*field='m'"):
        opened("m[].c[].d")
    with pytest.raises(fl.SchemaError, match=r"to a list or to an object, got `s0` at m\[\]\.c and `s1` at m\.c"):
        opened("m[].c", "m.c")
    with pytest.raises(fl.SchemaError, match=r"separate values, got `s0` at m\[\] and `s1` at m\[\]\.c"):
        opened("m[]", "m[].c")
    assert read_all(opened("n\\[]"))[0]["s0"] == [[1]]
    assert list(fl.open_corpus(path).schema) == ["m", "n\\[]"]


def test_rows_of_litdata(tmp_path):
    table = pa.Table.from_pylist([{"messages": row["messages"], "id": i} for i, row in enumerate(CHAT)])
    write_litdata_rows(tmp_path / "rows", table, 2)
    streams = {
        "content": fl.Stream(dtype="str", field="messages[].content"),
        "all": fl.Stream(dtype="bytes", field="messages"),
    }
    corpus = fl.open_corpus(tmp_path / "rows", streams=streams)
    values, bad = read_all(corpus)
    assert bad == []
    assert values["content"] == [[m["content"] for m in row["messages"]] for row in CHAT]
    assert [json.loads(text) for (text,) in values["all"]] == [row["messages"] for row in CHAT]
    assert sorted(corpus.nested_paths) == ["messages[].content", "messages[].role"]


@pytest.mark.frameworks("datasets")
def test_a_saved_dataset(tmp_path):
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features(
        {
            "translation": datasets.Translation(languages=["en", "fr"]),
            "answers": {
                "text": datasets.List(datasets.Value("string")),
                "start": datasets.List(datasets.Value("int32")),
            },
            "messages": datasets.List({"role": datasets.Value("string"), "content": datasets.Value("string")}),
        }
    )
    rows = {
        "translation": [{"en": f"a{i}", "fr": f"b{i}"} for i in range(20)],
        "answers": [{"text": ["x"] * (i % 3), "start": [i] * (i % 3)} for i in range(20)],
        "messages": [[{"role": "user", "content": f"{i} {k}"} for k in range(i % 4)] for i in range(20)],
    }
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved", num_shards=2)
    streams = {
        "english": fl.Stream(dtype="str", field="translation.en"),
        "start": fl.Stream((), "int32", field="answers.start"),
        "text": fl.Stream(dtype="str", field="answers.text"),
        "content": fl.Stream(dtype="str", field="messages[].content"),
    }
    values, bad = read_all(fl.open_corpus(tmp_path / "saved", streams=streams))
    assert bad == []
    assert values["english"] == [[row["en"]] for row in rows["translation"]]
    assert values["start"] == [row["start"] for row in rows["answers"]]
    assert values["text"] == [row["text"] for row in rows["answers"]]
    assert values["content"] == [[m["content"] for m in row] for row in rows["messages"]]
    column = {"messages": fl.Stream(dtype="bytes")}
    corpus = fl.open_corpus(tmp_path / "saved", streams=column)
    with fl.MinibatchSource(corpus, seed=1, max_sweeps=1) as source:
        texts = [text for m in source.minibatches(6) for text in m["messages"].tolist()]
    assert sorted(map(json.loads, texts), key=str) == sorted(rows["messages"], key=str)
    assert_resumes(lambda: fl.MinibatchSource(fl.open_corpus(tmp_path / "saved", streams=streams), max_sweeps=2))


@pytest.mark.parametrize("form", FORMS)
def test_a_feed_of_nested_values_resumes(tmp_path, form):
    rows = [None if i % 5 == 2 else [{"t": str(i), "n": k} for k in range(i % 4)] for i in range(13)]
    path = write(tmp_path, form, pa.array(rows, pa.list_(pa.struct([("t", pa.string()), ("n", pa.int8())]))))
    streams = {
        "t": fl.Stream(dtype="str", field="x[].t", missing="?"),
        "n": fl.Stream((), "int8", field="x[].n", missing=1, mask=True),
        "all": fl.Stream(dtype="bytes", field="x", missing=b""),
    }
    if form == "arrow":
        del streams["all"]  # with it, batches are decoded, as compressed ones are

    def make_source():
        corpus = fl.open_corpus(path, streams=streams)
        return fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=3), max_sweeps=2)

    assert_resumes(make_source)


def test_inspect_lists_the_paths(chat):
    with pytest.warns(UserWarning, match="by path, messages"):
        description = describe(open_path(chat, None, DEFAULT_CHUNK_SIZE), 0)
    assert sorted(description["nested"]) == ["messages[].content", "messages[].role"]
    streams = ["c=scalar:field=messages[].content:str"]
    assert describe(open_path(chat, streams, DEFAULT_CHUNK_SIZE), 1)["streams"][0]["name"] == "c"


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_paths_of_files_whose_schemas_differ(tmp_path, form):
    tables = [
        pa.table({"m": pa.array([{"a": 1, "l": [{"t": "x"}]}], pa.struct([("a", pa.int8()), ("l", TURNS)]))}),
        pa.table({"m": pa.array([{"a": 2**20}, None], pa.struct([("a", pa.int32())])), "other": [1, 2]}),
        pa.table({"other": [3]}),
    ]
    paths = []
    for i, table in enumerate(tables):
        paths.append(tmp_path / f"{i}.{form}")
        if form == "parquet":
            pq.write_table(table, paths[-1])
        else:
            with pa.OSFile(str(paths[-1]), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
    streams = {
        "a": fl.Stream((), "int32", field="m.a", missing=-1),
        "t": fl.Stream(dtype="str", field="m.l[].t", missing="?", mask=True),
    }
    values, bad = read_all(fl.open_corpus(paths, streams=streams, schema="union"))
    assert bad == []
    assert values == {
        "a": [[1], [2**20], [-1], [-1]],
        "t": [["x"], [], [], []],
        "t_present": [[True], [], [], []],
    }
    with pytest.raises(fl.SchemaError, match=r"m\.l"):
        fl.open_corpus(paths, streams={"t": fl.Stream(dtype="str", field="m.l[].t")}, schema="union")
    texts = r"JSON text of struct<a: int8, l: .*, the JSON text of struct<a: int32> in "
    with pytest.raises(fl.SchemaError, match=texts):
        fl.open_corpus(paths, streams={"m": fl.Stream(dtype="bytes", missing=b"")}, schema="union")
    with pytest.raises(fl.SchemaError, match=r"which have 'm\.a', 'm\.l\[\]\.t', 'other'"):
        fl.open_corpus(paths, streams={"t": fl.Stream(dtype="str", field="m.none")}, schema="union")


TURNS = pa.list_(pa.struct([("t", pa.string())]))
