"""RecordIO files: records equal MXNet's, for any labels and pictures. A damaged record costs only itself."""

from __future__ import annotations

import io
import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

import feedline as fl
from feedline.testing import assert_resumes
from tests.cli.shell import feedline
from tests.oracles.recordio import MAGIC, labels_and_image, packed, payloads, record, write

MADE = Path(__file__).parents[2] / "fixtures/recordio"
READ = json.loads((MADE / "read.json").read_text())
BYTES = fl.Stream(dtype="bytes")
COUNT = 90


def everything(corpus):
    """The labels and pictures of a corpus, sequence by sequence."""
    chunks = [corpus.read(i) for i in range(len(corpus.chunks()))]
    assert not any(chunk.errors for chunk in chunks)
    labels, images = [], []
    for chunk in chunks:
        value = chunk["label"]
        ragged = value.offsets is not None
        rows = value.sequences() if ragged else value.rows
        labels += [row.ravel().tolist() if np.ndim(row) else [float(row)] for row in rows]
        images += chunk["image"].tolist()
    return labels, images


@pytest.fixture
def copied(tmp_path):
    """A function that copies a file of the fixtures, and its index, to where an index of ours can be written."""

    def copy(name):
        for suffix in ("rec", "idx"):
            (tmp_path / f"{name}.{suffix}").write_bytes((MADE / f"{name}.{suffix}").read_bytes())
        return tmp_path / f"{name}.rec"

    return copy


# ---- what MXNet wrote -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READ)
def test_what_mxnet_wrote(copied, name):
    corpus = fl.open_corpus(copied(name))
    expected = [entry for entry in READ[name] if name != "faces" or entry["picture"]]
    labels, images = everything(corpus)
    assert labels == [entry["label"] if entry["flag"] else [entry["label"]] for entry in expected]
    assert images == [bytes.fromhex(entry["picture"]) for entry in expected]
    shape = 3 if name == "vectors" else ()
    assert corpus.schema == fl.Schema({"label": fl.Stream(shape), "image": BYTES})
    assert corpus.keys(np.arange(len(expected))).tolist() == [entry["key"] for entry in expected]
    lengths = corpus.lengths(np.arange(len(expected)))
    assert (lengths is None) == (name != "ragged")
    if name == "ragged":
        assert lengths.tolist() == [1 + i % 3 for i in range(len(expected))]


@pytest.mark.parametrize("name", READ)
def test_the_oracle_writes_and_reads_as_mxnet(name):
    data = (MADE / f"{name}.rec").read_bytes()
    assert b"".join(record(payload) for payload in payloads(data)) == data
    for payload, entry in zip(payloads(data), READ[name], strict=True):
        labels, image = labels_and_image(payload)
        assert (labels if entry["flag"] else labels[0], image.hex()) == (entry["label"], entry["picture"])


PICTURES = st.lists(st.sampled_from([b"", b"a", b"bcde", MAGIC, MAGIC[:2], b"\xff\xd8" * 50]), max_size=6).map(b"".join)
LABELS = st.floats(width=32, allow_nan=False).map(lambda x: [x]) | st.lists(
    st.integers(-9, 9).map(float), min_size=1, max_size=4
)


@given(st.lists(st.tuples(LABELS, PICTURES), min_size=1, max_size=12), st.sampled_from([1, 40, 1 << 20]))
@example([([1.0, 2.0], b""), ([3.0], b"x"), ([1.0, 2.0], b"")], 1)
@example([([0.0], MAGIC), ([float(np.frombuffer(MAGIC, np.float32)[0])], b"y")], 1 << 20)
def test_any_records(tmp_path_factory, records, chunk_size):
    path = tmp_path_factory.mktemp("r") / "a.rec"
    written = [packed(label[0] if len(label) == 1 else label, image, i) for i, (label, image) in enumerate(records)]
    write(path, written)
    # A first record of two labels without a picture is a range of ids, as all others of this kind are.
    if len(records[0][0]) == 2 and not records[0][1]:
        records = [(label, image) for label, image in records if image or len(label) != 2]
    if not records:
        with pytest.raises(fl.DataError, match="at least one record"):
            fl.RecordIODeserializer(path, cache=False)
        return
    labels, images = everything(fl.RecordIODeserializer(path, chunk_size=chunk_size, cache=False))
    assert (labels, images) == ([label for label, _ in records], [image for _, image in records])


def test_insightface_without_its_index(copied):
    path = copied("faces")
    path.with_suffix(".idx").unlink()
    corpus = fl.open_corpus(path.parent)  # a folder is the .rec files in it
    assert everything(corpus)[0] == [[0.0]] * 3 + [[1.0]] * 3
    assert corpus.keys(np.arange(6)).tolist() == [1, 2, 3, 4, 5, 6]


def test_insightface_with_a_damaged_record_0(copied):
    path = copied("faces")
    data = path.read_bytes()
    path.write_bytes(b"x" + data[1:])
    chunk = fl.open_corpus(path).read(0)
    assert list(chunk.errors) == [0]
    assert chunk["label"].rows.tolist()[1:] == [0.0] * 3 + [1.0] * 3


def test_keys_of_an_index(copied):
    path = copied("scalars")
    idx = path.with_suffix(".idx")
    lines = idx.read_text().splitlines(keepends=True)
    idx.write_text("".join(reversed(lines)))
    assert fl.open_corpus(path).keys(np.array([2, 0])).tolist() == [7, 1]
    idx.write_text("".join(lines[:-1]))
    with pytest.raises(fl.DataError, match=r"expected a key for the record at byte \d+"):
        fl.open_corpus(path).keys(np.array([6]))
    idx.write_text("")
    with pytest.raises(fl.DataError, match=r"(?s)expected a key for the record at byte 0.*write the .idx file again"):
        fl.open_corpus(path).keys(np.array([0]))
    idx.write_text("".join([*lines[:2], "7 12\n"]))
    with pytest.raises(fl.DataError, match=r"(?s)a key, a tab and an offset, got b'7 12'.*\.idx:3"):
        fl.open_corpus(path).keys(np.array([0]))


def test_keys_of_an_index_in_an_object_store(copied, tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    path, memory = copied("scalars"), fsspec.filesystem("memory")
    for suffix in (".rec", ".idx"):
        memory.pipe(f"/recordio/a{suffix}", path.with_suffix(suffix).read_bytes())
    remote = fl.Remote(tmp_path / "cache")
    both = fl.open_corpus("memory://recordio", remote=remote)
    assert both.capability(fl.Keyed).keys(np.array([2, 0])).tolist() == [7, 1]
    assert fl.Take(both, keys=[7]).read(0)["image"].samples() == [everything(fl.open_corpus(path))[1][2]]
    alone = fl.open_corpus("memory://recordio/a.rec", remote=remote)
    both.close()
    with pytest.raises(fl.DataError, match="open the folder that has both"):
        alone.capability(fl.Keyed).keys(np.array([0]))
    alone.close()


# ---- streams --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Two files, and their labels and pictures."""
    folder, rng = tmp_path_factory.mktemp("rec"), np.random.default_rng(5)
    images = [rng.bytes(int(rng.choice([1, 30, 511, 5000]))) for _ in range(COUNT)]
    for k in range(2):
        rows = range(k * 50, min(COUNT, k * 50 + 50))
        write(folder / f"{k}.rec", [packed(float(i), images[i], i) for i in rows], [100 + i for i in rows])
    return folder, images


def test_several_files(halves):
    folder, images = halves
    corpus = fl.RecordIODeserializer(str(folder / "{0..1}.rec"), chunk_size=20_000)
    assert everything(corpus) == ([[float(i)] for i in range(COUNT)], images)
    assert len(corpus.chunks()) > 5
    assert corpus.keys(np.array([77, 3])).tolist() == [177, 103]
    taken = fl.Take(corpus, keys=[177, 103])
    assert taken.select(np.arange(2))["image"].tolist() == [images[3], images[77]]
    picked = corpus.select(np.array([80, 2, 80]))
    assert picked["image"].tolist() == [images[80], images[2], images[80]]
    assert pickle.loads(pickle.dumps(corpus)).digest() == corpus.digest()
    assert fl.open_corpus(folder).digest() == fl.RecordIODeserializer(folder).digest() != corpus.digest()


def test_declared_streams(copied):
    streams = {"y": fl.Stream(3, field="label"), "picture": fl.Stream(dtype="bytes", field="image")}
    chunk = fl.RecordIODeserializer(copied("vectors"), streams).read(0)
    assert chunk["y"].rows.tolist() == [entry["label"] for entry in READ["vectors"]]
    assert list(chunk.values) == ["y", "picture"]
    assert list(fl.RecordIODeserializer(copied("ragged"), image=BYTES).read(0).values) == ["image"]
    sized = fl.Stream(dtype="bytes", defines_size=True)
    by_image = fl.RecordIODeserializer(copied("ragged"), label=fl.Stream(()), image=sized, sequences=["label"])
    assert by_image.lengths(np.arange(7)) is None
    assert sum(info.samples for info in by_image.chunks()) == 7
    ragged = fl.RecordIODeserializer(copied("scalars"), label=fl.Stream(()), sequences=["label"]).read(0)
    assert ragged["label"].offsets.tolist() == list(range(8))
    # Records with other labels than declared are unreadable, and say so.
    chunk = fl.RecordIODeserializer(copied("ragged"), label=fl.Stream(2)).read(0)
    assert sorted(chunk.errors) == [0, 2, 3, 5, 6]
    assert "expected 2 labels, got 3; declare its shape, or name the stream in sequences=" in str(chunk.errors[2])


@pytest.mark.parametrize(
    ("streams", "options", "match"),
    [
        ({"id": fl.Stream(())}, {}, "expected streams `label` and `image`"),
        ({"label": fl.Stream((), "int64")}, {}, "expected dense float32 .* an fl.Map"),
        ({"image": fl.Stream(dtype="str")}, {}, "expected `bytes` for stream `image`"),
        ({"label": fl.Stream((), missing=0.0)}, {}, "expected no `missing` or `mask`"),
        ({"a": fl.Stream((), field="label"), "label": fl.Stream(())}, {}, "expected one stream of labels"),
        ({"label": fl.Stream(2)}, {"sequences": ["label"]}, "expected a stream of scalar labels"),
        ({"image": BYTES}, {"sequences": ["image"]}, "expected a stream of scalar labels"),
    ],
)
def test_refused_streams(copied, streams, options, match):
    with pytest.raises(fl.SchemaError, match=match):
        fl.RecordIODeserializer(copied("scalars"), streams, **options)


# ---- laws -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ragged", [False, True])
def test_it_resumes_in_windows(tmp_path, ragged):
    labels = [[float(i)] * (1 + i % 3 * ragged) for i in range(60)]
    write(tmp_path / "a.rec", [packed(label, bytes([i]) * (i % 7)) for i, label in enumerate(labels)])
    assert_resumes(
        lambda: fl.MinibatchSource(
            fl.RecordIODeserializer(tmp_path / "a.rec", chunk_size=400), shuffle=fl.Window(chunks=3), max_sweeps=2
        )
    )


def test_the_loader_decodes_pictures(tmp_path):
    rng = np.random.default_rng(1)
    pictures = rng.integers(0, 255, (20, 12, 10, 3), np.uint8)
    encoded = []
    for picture in pictures:
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "png")
        encoded.append(file.getvalue())
    write(tmp_path / "train.rec", [packed(float(i % 4), data) for i, data in enumerate(encoded)])
    loader = fl.DataLoader(
        tmp_path / "train.rec", batch_size=6, transforms=[fl.images.Decode("image", fl.images.CenterCrop((12, 10)))]
    )
    batches = list(loader)
    assert np.array_equal(np.concatenate([np.asarray(batch["image"]) for batch in batches]), pictures)
    assert np.concatenate([np.asarray(batch["label"]) for batch in batches]).tolist() == [i % 4 for i in range(20)]


def test_the_command_line(halves, tmp_path):
    folder, images = halves
    shown = feedline("inspect", folder / "0.rec")
    assert "recordio" in shown.stdout
    assert "image" in shown.stdout
    feedline("convert", folder / "0.rec", tmp_path / "store")
    stored = fl.StoreDeserializer(tmp_path / "store").select(np.arange(50))
    assert stored["image"].tolist() == images[:50]
    assert stored["label"].rows.tolist() == list(range(50))


# ---- damage ---------------------------------------------------------------------------------------------


def damaged(tmp_path, at, data, count=20):
    """A file of equal records, with bytes replaced in record 7."""
    path = tmp_path / "a.rec"
    offsets = write(path, [packed(float(i), bytes([i]) * 40) for i in range(count)])
    with open(path, "r+b") as file:
        file.seek(offsets[7] + at)
        file.write(data)
    return path, offsets[7]


@pytest.mark.parametrize(
    ("at", "data", "what", "byte"),
    [
        (0, b"\0", "which begins with 0xced7230a, got 0xced72300", 0),
        (0, bytes(8), "which begins with 0xced7230a, got 0x00000000", 0),
        (0, bytes(72), "which begins with 0xced7230a, got 0x00000000", 0),
        (4, b"\x44", "expected a record of 72 bytes, up to the next one, got a length of 76|got 72 up to the end", 0),
        (
            4,
            struct.pack("<I", 3 << 29 | 64),
            "expected the beginning or the next part of a record, got a part of kind 3",
            0,
        ),
        (4, struct.pack("<I", 8), "expected a record of 72 bytes, up to the next one, got a length of 16", 0),
        (8, b"\xff\xff", "expected a record of 262164 bytes or more for its header and labels, got 64", 8),
        (8, b"\x02", "expected 1 labels, got 2", 8),
    ],
)
def test_a_bad_record_is_one_unreadable_sequence(tmp_path, at, data, what, byte):
    path, offset = damaged(tmp_path, at, data)
    corpus = fl.RecordIODeserializer(path, label=fl.Stream(()), image=BYTES)
    chunk = corpus.read(0)
    assert list(chunk.errors) == [7]
    error = chunk.errors[7]
    assert (error.path, error.byte, error.sequence) == (str(path), offset + byte, 7)
    with pytest.raises(fl.DataError, match=f"(?:{what}).*in record 7"):
        raise error
    rest = [i for i in range(20) if i != 7]
    assert chunk["label"].rows[rest].tolist() == rest
    assert [chunk["image"].tolist()[i] for i in rest] == [bytes([i]) * 40 for i in rest]
    source = fl.MinibatchSource(corpus, on_error="skip", shuffle=False, max_sweeps=1)
    assert [label for batch in source.minibatches(6) for label in batch["label"].rows.tolist()] == rest


def test_a_cut_file(tmp_path):
    path, _ = damaged(tmp_path, 0, b"")
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 3)
    chunk = fl.RecordIODeserializer(path).read(0)
    assert list(chunk.errors) == [19]
    assert "expected a record of 72 bytes, got 69 up to the end" in str(chunk.errors[19])


def test_a_file_that_changes(tmp_path):
    path, _ = damaged(tmp_path, 0, b"")
    corpus = fl.RecordIODeserializer(path)
    path.write_bytes(path.read_bytes() + record(packed(1.0)))
    with pytest.raises(fl.DataError, match="has changed since"):
        corpus.read(0)


@pytest.mark.parametrize("data", [b"", b"abc", b"not a file of records"])
def test_other_files(tmp_path, data):
    path = tmp_path / "a.rec"
    path.write_bytes(data)
    match = "a RecordIO file, whose records begin with" if data else "at least one record, got none"
    with pytest.raises(fl.DataError, match=match):
        fl.RecordIODeserializer(path)
