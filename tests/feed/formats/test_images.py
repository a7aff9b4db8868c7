"""Encoded pictures with labels: folders in torchvision's order, CNTK's map and base64 files by its rules, damage."""

from __future__ import annotations

import base64
import errno
import os
import pickle
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.testing import assert_resumes, bytes_digest, sequences_of

SHARED = Path(__file__).parents[4] / "shared" / "data" / "images"
IMAGE = fl.Stream(dtype="bytes", field="image")


def pictures(count, seed=1):
    draw = random.Random(seed)
    return [b"\xff\xd8" + draw.randbytes(draw.choice([1, 30, 900])) for _ in range(count)]


def folder_of(place, names):
    """Files that hold their own names."""
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(name.encode())
    return place


def torchvisions(root):
    """(path, label) in torchvision's documented order, by class, folder and file name, and the classes."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    found = []
    for label, name in enumerate(classes):
        for place, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            pictures = [file for file in sorted(files) if file.lower().endswith((".jpg", ".png"))]
            found += [(os.path.relpath(os.path.join(place, file), root), label) for file in pictures]
    return found, classes


@pytest.mark.frameworks("torch", "torchvision")
def test_torchvision_itself_orders_a_folder_like_that(tmp_path):
    from tests.frameworks.vision import torchvision

    folder_of(tmp_path, ["b/x/1.jpg", "b/x-/1.jpg", "b/2.PNG", "b/10.jpg", "B/é.jpg", "B/f.jpg", "B/.h.jpg", "B/t.txt"])
    folder = torchvision.datasets.ImageFolder(tmp_path, loader=str)
    samples = [(os.path.relpath(path, tmp_path), label) for path, label in folder.samples]
    assert (samples, folder.classes) == torchvisions(tmp_path)


NAMES = st.lists(st.sampled_from(["a", "B", "b", "é", "1", "10", "a b", "."]), min_size=1, max_size=3).map("".join)
FILES = st.lists(
    st.tuples(
        st.lists(NAMES.filter(lambda n: n.strip(".")), min_size=1, max_size=3), NAMES, st.sampled_from([".jpg", ".PNG"])
    ),
    min_size=1,
    max_size=12,
)


@given(FILES)
def test_a_folder_is_ordered_as_torchvision_orders_it(tmp_path_factory, files):
    root = tmp_path_factory.mktemp("folder")
    folder_of(root, ["/".join(folders) + f"/{name}x{suffix}" for folders, name, suffix in files])
    (root / "README").write_text("not a class")
    corpus = fl.ImageFolderDeserializer(root, image=IMAGE, label=fl.Stream(), key=fl.Stream(dtype="str"))
    expected, classes = torchvisions(root)
    whole = corpus.select(np.arange(len(expected)))
    assert list(zip(whole["key"].tolist(), whole["label"].rows.tolist(), strict=True)) == expected
    assert whole["image"].tolist() == [path.encode() for path, _ in expected]
    assert corpus.classes == classes


@pytest.fixture(scope="module", params=["folder", "map", "zip", "base64"])
def reopen(request, tmp_path_factory):
    """Write 60 pictures of 5 classes in each form. Returns a function that opens them, and their values."""
    place, found = tmp_path_factory.mktemp(request.param), pictures(60)
    labels = sorted(i % 5 for i in range(60))
    names = [f"{label}/{i:03d}.jpg" for i, label in enumerate(labels)]
    if request.param == "base64":
        lines = [
            f"{i + 7}\t{y}\t{base64.b64encode(x).decode()}" for i, (x, y) in enumerate(zip(found, labels, strict=True))
        ]
        (place / "a.txt").write_text("\n".join(lines))
        return lambda **streams: fl.Base64ImageDeserializer(place / "a.txt", streams, chunk_size=3000), found, labels
    if request.param == "zip":
        with zipfile.ZipFile(place / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in zip(names, found, strict=True):
                archive.writestr(name, data)
        names = [f".../a.zip@/{name}" for name in names]
    else:
        for name, data in zip(names, found, strict=True):
            (place / "classes" / name).parent.mkdir(parents=True, exist_ok=True)
            (place / "classes" / name).write_bytes(data)
        if request.param == "folder":
            return lambda **streams: fl.ImageFolderDeserializer(place / "classes", streams), found, labels
        names = [f".../classes/{name}" for name in names]
    (place / "a.txt").write_text(
        "".join(f"{i + 7}\t{n}\t{y}\n" for i, (n, y) in enumerate(zip(names, labels, strict=True)))
    )
    return lambda **streams: fl.ImageMapDeserializer(place / "a.txt", streams), found, labels


def test_values_and_the_laws(reopen):
    make, found, labels = reopen

    def source(**options):
        streams = {
            "x": IMAGE,
            "y": fl.Stream(5, sparse=True, field="label"),
            "n": fl.Stream((), "uint8", field="label"),
        }
        return fl.MinibatchSource(make(**streams), **{"seed": 2, "max_sweeps": 2, **options})

    whole = source(shuffle=False, max_sweeps=1).next_minibatch(100)
    assert whole["x"].tolist() == found
    assert whole["n"].rows.tolist() == labels
    assert (whole["y"].class_indices().rows == whole["n"].rows).all()
    for shuffle in (True, fl.Window(samples=30)):
        digests = {bytes_digest(source(shuffle=shuffle).minibatches(size)) for size in (7, 64)}
        assert len(digests) == 1
        assert_resumes(lambda shuffle=shuffle: source(shuffle=shuffle), sizes=(9,))
    full, parts = source(max_sweeps=1), [source(max_sweeps=1, partition=(i, 3)) for i in range(3)]
    for minibatch in full.minibatches(11):
        assert [one for part in parts for one in sequences_of([part.next_minibatch(11)])] == sequences_of([minibatch])


@pytest.mark.filterwarnings("ignore:expected at most")
def test_a_loader_and_other_processes(reopen):
    make, found, labels = reopen
    corpus = make()
    again = pickle.loads(pickle.dumps(corpus))
    assert (again.digest(), again.schema) == (corpus.digest(), corpus.schema)
    for workers in (0, 2, 3):
        loader = fl.DataLoader(corpus, batch_size=16, shuffle=True, num_workers=workers)
        seen = [pair for batch in loader for pair in zip(batch["label"].tolist(), batch["image"], strict=True)]
        assert sorted(seen) == sorted(zip(labels, found, strict=True))
    assert corpus.select(np.array([7, 3, 7]))["image"].tolist() == [found[7], found[3], found[7]]
    with pytest.raises(IndexError, match="expected 0 <= ordinal < 60"):
        corpus.select(np.array([60]))


def test_keys_join(tmp_path):
    """Numbers with a CTF's, names with an archive's."""
    root = folder_of(tmp_path / "c", [f"{c}/{i}.jpg" for c in "ab" for i in range(9)])
    (tmp_path / "m.txt").write_text("".join(f"{90 - i}\t.../c/a/{i}.jpg\t{i}\n" for i in range(9)))
    (tmp_path / "b.txt").write_text(
        "".join(f"{82 + i}\t{i}\t{base64.b64encode(b'%d' % i).decode()}\n" for i in range(9))
    )
    joined = fl.Join(
        fl.ImageMapDeserializer(tmp_path / "m.txt", y=fl.Stream((), "int64", field="label")),
        fl.Base64ImageDeserializer(tmp_path / "b.txt", x=IMAGE),
        cache=False,
    )
    for m in fl.MinibatchSource(joined, max_sweeps=1).minibatches(4):
        assert m["x"].tolist() == [b"%d" % (8 - y) for y in m["y"].rows.tolist()]
    named = tmp_path / "n.txt"
    named.write_text("".join(f"{c}/{i}.jpg\t.../c/{c}/{i}.jpg\t{i}\n" for c in "ba" for i in range(9)))
    joined = fl.Join(
        fl.ImageFolderDeserializer(root, x=IMAGE),
        fl.ImageMapDeserializer(named, y=fl.Stream((), "int64", field="label")),
        cache=False,
    )
    for m in fl.MinibatchSource(joined, max_sweeps=1).minibatches(4):
        assert [x.decode()[2:-4] for x in m["x"].tolist()] == [str(y) for y in m["y"].rows.tolist()]


def test_by_content(reopen, tmp_path):
    make, found, labels = reopen
    corpus = make()
    if isinstance(corpus, fl.ImageMapDeserializer):  # with any name
        path = Path(corpus.name).with_suffix(".anything")
        path.write_bytes(Path(corpus.name).read_bytes())
    elif isinstance(corpus, fl.Base64ImageDeserializer):
        path = tmp_path / "b.map"
        path.write_text("".join(f"{i}\t{base64.b64encode(b'xyz' * 40).decode()}\r\n" for i in range(3)))
        assert fl.open_corpus(path).read(0)["image"].tolist() == [b"xyz" * 40] * 3
        return
    else:
        path = Path(corpus.name)
    opened = fl.open_corpus(path)
    assert type(opened) is type(corpus)
    assert opened.schema == fl.Schema({"image": fl.Stream(dtype="bytes"), "label": fl.Stream((), "int64")})
    assert opened.select(np.arange(60))["image"].tolist() == found
    hot = fl.open_corpus(path, streams={"label": fl.Stream(5, sparse=True)}).select(np.arange(60))
    assert hot["label"].class_indices().rows.tolist() == labels


@pytest.mark.skipif(not SHARED.exists(), reason="needs CNTK's own map files")
@pytest.mark.parametrize("kind", ["Simple", "Zip"])
def test_cntks_own_files(kind, monkeypatch):
    """Paths are relative to the working directory, as there."""
    path = SHARED / f"ImageReader{kind}_map.txt"
    monkeypatch.chdir(SHARED)
    chunk = fl.open_corpus(path.name).read(0)
    again = fl.ImageMapDeserializer(path, root=SHARED).read(0)
    encoded = (SHARED / "images" / "black.jpg").read_bytes()
    assert chunk["image"].tolist()[0] == again["image"].tolist()[0] == encoded
    assert chunk["label"].rows.tolist()[:3] == [0, 1, 2]
    one = fl.Base64ImageDeserializer(SHARED / "Base64ImageReaderSimple_map.txt", cache=False).read(0)
    assert one["image"].tolist() == chunk["image"].tolist()


# ---- damage ---------------------------------------------------------------------------------------------


def test_what_is_no_corpus(tmp_path):
    (tmp_path / "a.txt").touch()
    for kind in (fl.ImageMapDeserializer, fl.Base64ImageDeserializer):
        for path in (tmp_path / "a.txt", tmp_path / "none", tmp_path):
            with pytest.raises(fl.DataError):
                kind(path)
    for path in (tmp_path / "a.txt", tmp_path / "none", tmp_path):
        with pytest.raises(fl.DataError):
            fl.ImageFolderDeserializer(path)
    folder_of(tmp_path, ["c/a/1.jpg", "c/b/1.txt"])
    with pytest.raises(fl.DataError, match="in every class, got none in `b`"):
        fl.ImageFolderDeserializer(tmp_path / "c")
    (tmp_path / "c" / "b" / "1.jpg").symlink_to("../a/1.jpg")
    (tmp_path / "c" / "b" / "loop").symlink_to("..")
    corpus = fl.ImageFolderDeserializer(tmp_path / "c", key=fl.Stream(dtype="str"))
    assert corpus.read(0)["key"].tolist() == ["a/1.jpg", "b/1.jpg", "b/loop/a/1.jpg"]
    for streams, message in (
        ({"x": fl.Stream()}, "`image`, `label` or `key` as field of stream `x`, got `x`"),
        ({"image": fl.Stream(3)}, "expected bytes or str for stream `image`"),
        ({"label": fl.Stream(3)}, "a number or one-hot"),
    ):
        with pytest.raises(fl.SchemaError, match=message):
            fl.ImageFolderDeserializer(tmp_path / "c", streams)
    with pytest.raises(fl.SchemaError, match="each stream once, got image"):
        fl.ImageFolderDeserializer(tmp_path / "c", {"image": fl.Stream(dtype="bytes")}, image=fl.Stream(dtype="str"))


def test_links_to_folders(tmp_path):
    """Only links to a folder above are ignored. Other links are second classes, or second names, of the same files."""
    folder_of(tmp_path, ["c/a/1.jpg"])
    (tmp_path / "c" / "b").symlink_to("a")
    (tmp_path / "c" / "Z").symlink_to("a")
    (tmp_path / "c" / "a" / "up").symlink_to("..")
    corpus = fl.ImageFolderDeserializer(tmp_path, key=fl.Stream(dtype="str"))
    assert corpus.read(0)["key"].tolist() == ["c/Z/1.jpg", "c/a/1.jpg", "c/b/1.jpg"]


def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    """Not a corpus without its pictures."""
    folder_of(tmp_path, ["c/a/1.jpg", "c/b/1.jpg"])
    scandir = os.scandir

    def failing(path):
        if str(path).endswith("b"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(fl.DataError, match="Input/output error"):
        fl.ImageFolderDeserializer(tmp_path)


@pytest.mark.parametrize("name", ["1.jpg", "a.zip@/x.jpg"])
def test_a_lack_of_descriptors_is_no_bad_picture(tmp_path, monkeypatch, name):
    """It would have stayed one for as long as its window was held."""
    folder_of(tmp_path, ["1.jpg"])
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x.jpg", b"zipped")
    (tmp_path / "m.txt").write_text(f"{name}\t0\n")
    corpus = fl.ImageMapDeserializer(tmp_path / "m.txt", image=IMAGE, root=tmp_path)
    corpus.close()
    with monkeypatch.context() as patch:
        error = OSError(errno.EMFILE, "Too many open files")
        patch.setattr(os, "open", lambda *_, **__: (_ for _ in ()).throw(error))
        with pytest.raises(fl.DataError, match="Too many open files"):
            corpus.read(0)
    assert not corpus.read(0).errors


def test_bad_lines_of_a_map(tmp_path):
    folder_of(tmp_path, ["1.jpg", "2.jpg"])
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x.jpg", b"zipped")
    (tmp_path / "no.zip").write_bytes(b"PK")
    os.mkfifo(tmp_path / "fifo")
    lines = [
        ("1.jpg\t0", None),
        ("1.jpg\t-1", "the label a number"),
        ("", "the label a number"),
        ("1.jpg 0", "the label a number"),
        ("none.jpg\t1", "No such file"),
        ("1\0.jpg\t1", "the label a number"),
        ("a.zip@/x.jpg\t1", None),
        ("a.zip@/y.jpg\t1", "expected `y.jpg` in the archive"),
        ("no.zip@/y.jpg\t1", "expected a zip archive"),
        ("none.zip@/y.jpg\t1", "No such file"),
        ("fifo\t1", "it is a FIFO"),
        (".\t1", "it is a folder"),
        ("2.jpg\t2", "expected a label below 2, got 2"),
        ("2.jpg\t99999999999999999999", "the label a number"),
        ("a.zip@\\x.jpg\t1\r", None),
        ("k\t2.jpg\t1", None),
    ]
    path = tmp_path / "m.txt"
    path.write_text("\n".join(line for line, _ in lines))
    corpus = fl.ImageMapDeserializer(path, image=IMAGE, label=fl.Stream(2, sparse=True), root=tmp_path)
    chunk = corpus.read(0)
    assert sorted(chunk.errors) == [i for i, (_, message) in enumerate(lines) if message]
    for i, error in chunk.errors.items():
        assert lines[i][1] in error.what
        assert error.sequence == i
    assert chunk.errors[2].line == 3
    assert [chunk["image"].tolist()[i] for i in (0, 6, 14, 15)] == [b"1.jpg", b"zipped", b"zipped", b"2.jpg"]
    small = fl.ImageMapDeserializer(path, image=IMAGE, root=tmp_path, memory=11).read(0)
    assert "of at most 0 bytes more in a chunk (memory), got one of 6" in small.errors[14].what


def test_bad_lines_of_base64(tmp_path):
    good = base64.b64encode(b"picture" * 5).decode()
    lines = [
        (f"0\t{good}", None),
        (f"1\t{good} \r", None),
        (f"x\t{good}", "a number as label"),
        ("", "got 1 words"),
        (f"1\t{good}\t1", "got 3 words"),
        ("1\t", "a picture in base64, got none"),
        ("1\tab!cd", "expected base64"),
        (f"1\t{good[:-1]}", "expected base64" if len(good) % 4 == 0 else None),
        (f"7\t{good}", "expected a label below 2, got 7"),
        (f"1\t{good}", None),
    ]
    path = tmp_path / "b.txt"
    path.write_text("\n".join(line for line, _ in lines))
    chunk = fl.Base64ImageDeserializer(path, image=IMAGE, label=fl.Stream((), "bool"), cache=False).read(0)
    assert sorted(chunk.errors) == [i for i, (_, message) in enumerate(lines) if message]
    for i, error in chunk.errors.items():
        assert lines[i][1] in error.what
        assert (error.path, error.sequence, error.line) == (str(path), i, i + 1)
    assert chunk["image"].tolist()[-1] == chunk["image"].tolist()[0] == b"picture" * 5


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_archive(tmp_path, method):
    """Any byte of it: refused by one of our errors, for its own pictures, or read."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        for i in range(3):
            archive.writestr(f"{i}.jpg", bytes([i]) * 500)
    (tmp_path / "m.txt").write_text("".join(f".../a.zip@/{i}.jpg\t{i}\n" for i in range(3)))
    whole = (tmp_path / "a.zip").read_bytes()
    for at in range(len(whole)):
        (tmp_path / "a.zip").write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        chunk = fl.ImageMapDeserializer(tmp_path / "m.txt").read(0)
        for i, image in enumerate(chunk["image"].tolist()):
            assert i in chunk.errors or image == bytes([i]) * 500


def test_an_archive_that_claims_too_much(tmp_path):
    """No buffer is made for what cannot be there."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("0.jpg", b"picture")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    at = data.index(b"PK\1\2")
    (tmp_path / "m.txt").write_text(".../a.zip@0.jpg\t0\n")
    for field, size, message in (
        (20, 2**31, "end before the archive's directory"),
        (24, 2**32 - 2, r"at most \d+ bytes"),
    ):
        damaged = bytearray(data)
        damaged[at + field : at + field + 4] = size.to_bytes(4, "little")
        (tmp_path / "a.zip").write_bytes(damaged)
        with pytest.raises(fl.DataError, match=message):
            raise fl.ImageMapDeserializer(tmp_path / "m.txt").read(0).errors[0]
