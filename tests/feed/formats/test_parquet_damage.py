"""Parquet files that are damaged or hostile: a `DataError`, never the end of the process or of its memory."""

from __future__ import annotations

import ast
import io
import os
import random
import resource
import signal
import traceback
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import feedline as fl
from tests.effort import stride
from tests.forked import Forked
from tests.native.test_parquet import damaged

WRITTEN = {
    "statistics": {"write_page_index": True, "write_page_checksum": True, "data_page_size": 64, "row_group_size": 20},
    "v2": {"data_page_version": "2.0", "compression": "zstd"},
    "bare": {"compression": "none", "use_dictionary": False, "write_statistics": False},
}


def written(kind: str) -> bytes:
    n = 40
    bounds = pa.array(np.arange(n + 1, dtype="i4"))
    pairs = pa.StructArray.from_arrays([pa.array(np.arange(n, dtype="i4") % 5), pa.array(np.ones(n, "f4"))], ["i", "v"])
    table = pa.table(
        {
            "x": np.arange(n, dtype="f4"),
            "flag": np.arange(n) % 3 == 0,
            "maybe": pa.array([None if i == 7 else i for i in range(n)], pa.int32()),
            "pair": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * n, dtype="f8")), 2),
            "words": pa.ListArray.from_arrays(bounds, pa.array(np.arange(n) % 7)),
            "y": pa.ListArray.from_arrays(bounds, pairs),
        }
    )
    file = io.BytesIO()
    pq.write_table(table, file, **WRITTEN[kind])
    return file.getvalue()


def read_all(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns that are no streams
        corpus = fl.ParquetDeserializer(path, **options)
    for number in range(len(corpus.chunks())):
        corpus.read(number)
    corpus.lengths(np.arange(2))
    corpus.digest()


def survivors(path, contents):
    """Read each content in a forked child. Returns the foreign errors, None for a content that ended the child."""
    done, told = os.pipe()

    def read_each():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.close(done)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with os.fdopen(told, "w", buffering=1) as out:
            for content in contents:
                path.write_bytes(content)
                try:
                    read_all(path)
                    out.write("read\n")
                except (fl.DataError, fl.SchemaError):
                    out.write("refused\n")
                except BaseException:
                    out.write(repr(traceback.format_exc()) + "\n")
        return True

    child = Forked(read_each, 150)
    os.close(told)
    with os.fdopen(done) as lines:
        outcomes = lines.read().splitlines()
    status = child.status()
    foreign = [line for line in outcomes if line not in ("read", "refused")]
    assert (status, len(outcomes), foreign) == (0, len(contents), []), f"after {len(outcomes)} of {len(contents)}"
    return outcomes


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", WRITTEN)
def test_no_byte_of_a_footer_ends_the_process(tmp_path, kind):
    """pyarrow checks histograms of levels where its exceptions cannot be caught."""
    good = written(kind)
    length = int.from_bytes(good[-8:-4], "little")
    contents, end = [], len(good) - 8
    for at in [*range(end - length, end, stride(3)), *range(end, len(good))]:
        content = bytearray(good)
        content[at] = (content[at] + 1) % 256
        contents.append(bytes(content))
    outcomes = survivors(tmp_path / "a.parquet", contents)
    assert {"read", "refused"} == set(outcomes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("seed", range(3))
def test_no_damage_ends_the_process(tmp_path, seed):
    rng = random.Random(seed)
    contents = []
    sound = [written(kind) for kind in WRITTEN]
    for _ in range(400):
        good = rng.choice(sound)
        length = int.from_bytes(good[-8:-4], "little")
        at = len(good) - 8 - length
        pages, footer = good[:at], good[at:-8]
        if rng.random() < 0.5:
            pages = pages[:4] + damaged(pages[4:], rng.randrange(2**32))
        else:
            footer = damaged(footer, rng.randrange(2**32))
        contents.append(pages + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    survivors(tmp_path / "a.parquet", contents)


def test_nobody_asks_pyarrow_for_the_metadata_of_row_groups():
    """Where it meets damage, no exception reaches Python: the process ends."""
    for path in Path(fl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            assert not (isinstance(node, ast.Attribute) and node.attr in ("row_group", "row_groups")), (
                path,
                node.lineno,
            )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-4] + b"PARE", "got an encrypted one"),
        (lambda data: data[:-4] + b"PAR2", "ends in b'PAR2', not in b'PAR1'"),
        (lambda data: data[:-8] + (2**31).to_bytes(4, "little") + b"PAR1", "2147483648 bytes in a file of"),
        (lambda data: b"PAR1", "footer cannot be read"),
        (lambda data: b"", "footer cannot be read"),
    ],
)
def test_messages_about_a_damaged_footer(tmp_path, change, message):
    path = tmp_path / "a.parquet"
    path.write_bytes(change(written("bare")))
    with pytest.raises(fl.DataError, match=message) as caught:
        fl.ParquetDeserializer(path)
    assert caught.value.path == str(path)


def test_the_byte_of_the_damage_is_reported(tmp_path):
    path = tmp_path / "a.parquet"
    good = written("bare")
    at = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    path.write_bytes(good[:at] + b"\x1f" + good[at + 1 :])
    with pytest.raises(fl.DataError, match="footer cannot be read: a field of an unknown type") as caught:
        fl.ParquetDeserializer(path)
    assert caught.value.byte == at + 1


def test_columns_of_one_name(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2.0]), pa.array(["a"])], ["x", "x", "n"]), path)
    for streams in (None, ["x"]):
        with pytest.raises(fl.SchemaError, match=r"expected a single column 'x' .*several"):
            fl.ParquetDeserializer(path, streams)
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array(["a"]), pa.array(["b"])], ["x", "n", "n"]), path)
    with pytest.raises(fl.SchemaError, match=r"expected a single column 'n' .*several"):
        fl.ParquetDeserializer(path)
    assert fl.ParquetDeserializer(path, ["x"]).read(0)["x"].rows.tolist() == [1]


# ---- memory -------------------------------------------------------------------------------------------


def test_a_small_file_that_becomes_a_large_chunk_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    rows = 1_000_000
    table = pa.table({"x": np.zeros(rows), "y": np.zeros(rows, "f4"), "flag": np.zeros(rows, bool)})
    pq.write_table(table, path, row_group_size=rows)
    assert path.stat().st_size < 20_000
    needed = rows * (8 + 4 + 1)
    with pytest.raises(
        fl.DataError, match=rf"at most {needed - 1} bytes .*\(memory\), got {needed} in row group 0"
    ) as c:
        fl.ParquetDeserializer(path, memory=needed - 1)
    assert "memory=" in c.value.hint
    with pytest.raises(fl.DataError, match="memory"):
        fl.open_corpus(path, memory=needed - 1)
    assert fl.ParquetDeserializer(path, memory=needed).read(0).nbytes == needed
    assert fl.ParquetDeserializer(path, ["y"], memory=4 * rows).read(0).nbytes == 4 * rows
    with pytest.raises(ValueError, match="memory of at least 1"):
        fl.ParquetDeserializer(path, memory=0)


def test_pages_with_more_values_than_in_the_footer_are_refused(tmp_path):
    """Decoders do not trust the footer: a page's header gives its number of values."""
    path = tmp_path / "a.parquet"
    words = pa.ListArray.from_arrays(pa.array([0, 1_000_000], pa.int32()), pa.array(np.zeros(1_000_000, "i8")))
    pq.write_table(pa.table({"words": words}), path, write_statistics=False, data_page_size=1 << 30)
    data = path.read_bytes()
    at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    # num_values of the column: 1000000 as a zigzag varint becomes 16 in as many bytes.
    assert data[at:].count(b"\x16\x80\x89\x7a") == 1
    path.write_bytes(data[:at] + data[at:].replace(b"\x16\x80\x89\x7a", b"\x16\xa0\x80\x00"))
    corpus = fl.ParquetDeserializer(path, defines_size=None, memory=1 << 20)
    with pytest.raises(fl.DataError, match=r"at most 1048576 bytes .*got 8000016 in row group 0"):
        corpus.chunks()
    with pytest.raises(fl.DataError, match="got 8000016"):
        corpus.read(0)


def test_a_page_that_decompresses_to_more_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"x": np.arange(100.0)})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    corpus = fl.ParquetDeserializer(path, memory=801)  # the page has levels in addition to its 800 bytes
    with pytest.raises(fl.DataError, match=r"at most 801 bytes .*got 80[2-9] in row group 0"):
        corpus.read(0)
    assert fl.ParquetDeserializer(path, memory=820).read(0).num_sequences == 100


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_memory_stays_within_what_was_given(tmp_path):
    """213 kB became 673 MiB: now the process does not grow by more than the limit before it refuses."""
    path = tmp_path / "a.parquet"
    rows = 20_000_000
    pq.write_table(pa.table({"x": np.zeros(rows)}), path, row_group_size=rows)

    def refuses():
        before = resident()
        with pytest.raises(fl.DataError):
            fl.ParquetDeserializer(path, memory=10 << 20).read(0)
        return resident() - before < 40 << 20

    assert Forked(refuses).status() == 0


def test_lengths_need_room(tmp_path, monkeypatch):
    """A full disk is reported for lengths, too, whichever write it interrupts."""
    path = tmp_path / "a.parquet"
    path.write_bytes(written("bare"))
    corpus = fl.ParquetDeserializer(path, ["x", "words"])
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
    try:
        with pytest.raises(fl.DataError, match="expected room for the lengths of sequences") as caught:
            corpus.chunks()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "TMPDIR" in caught.value.hint
