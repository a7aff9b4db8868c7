"""A corpus of video files: its streams, its chunks, and the laws of order and state."""

import dataclasses
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import feedline as fl
from feedline import video
from feedline.errors import DataError, SchemaError
from feedline.testing import assert_resumes, sequences_of
from feedline.video.packet_cache import packets_of, version_of
from tests.video.clips import KINDS, SIDE, decode_all, make_video, packets
from tests.warm import Python

pytestmark = pytest.mark.frameworks("av", "torchcodec")

SIZE = (SIDE, SIDE)


@pytest.fixture(scope="module")
def folder(videos, tmp_path_factory):
    """A folder of three videos, one in a folder of its own, and a file that is none."""
    folder = tmp_path_factory.mktemp("clips")
    (folder / "b").mkdir()
    for kind, name in [("h264", "a.mp4"), ("vp9", "b/1.webm"), ("mpeg4", "c.mp4")]:
        shutil.copy(videos(kind), folder / name)
    (folder / "notes.txt").write_text("no video")
    return folder


def rows_of(corpus):
    return [corpus.read(chunk) for chunk in range(len(corpus.chunks()))]


def test_a_row_for_each_frame(folder):
    corpus = video.folder(folder)
    files = [str(folder / name) for name in ("a.mp4", "b/1.webm", "c.mp4")]
    assert corpus.files == files
    expected = [(i, t, f"{file}#t={t!r}") for i, file in enumerate(files) for t in decode_all(file).times]
    chunks = rows_of(corpus)
    rows = [
        row
        for chunk in chunks
        for row in zip(chunk["video"].tolist(), chunk["time"].tolist(), chunk["frame"].tolist(), strict=True)
    ]
    assert rows == expected
    assert [info.sequences for info in corpus.chunks()] == [len(chunk["time"]) for chunk in chunks]
    assert str(corpus.schema) == str(fl.open_corpus(files).schema)


def test_chunks_are_whole_groups_of_one_file(tmp_path):
    paths = [make_video(tmp_path / "a", "h264 odd groups", frames=300), make_video(tmp_path / "b", "h264", frames=30)]
    corpus = video.VideoDeserializer(paths)
    infos, first = corpus.chunks(), 0
    assert len(infos) > 3
    rows = packets(paths[0])
    for info in infos[:-1]:
        assert rows[first][4] == 1
        assert info.sequences <= 128
        assert info.bytes == sum(row[3] for row in rows[first : first + info.sequences])
        first += info.sequences
    assert first == 300
    assert infos[-1].sequences == 30


def test_a_long_group_is_one_chunk(tmp_path):
    path = make_video(tmp_path / "a", "mpeg4", frames=5)
    KINDS["long"] = dataclasses.replace(KINDS["mpeg4"], options={"g": "600", "sc_threshold": "1000000000"})
    try:
        path = make_video(tmp_path / "b", "long", frames=300)
    finally:
        del KINDS["long"]
    assert [info.sequences for info in video.VideoDeserializer(path).chunks()] == [300]


def test_other_streams(folder):
    corpus = video.folder(
        folder,
        file=fl.Stream(dtype="str", field="video"),
        t=fl.Stream((), "float32", field="time"),
        frame=fl.Stream(dtype="str"),
    )
    chunk = corpus.select(np.array([100, 3]))
    assert chunk["file"].tolist() == [str(folder / "c.mp4"), str(folder / "a.mp4")]
    assert chunk["t"].rows.dtype == np.float32


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        ({"x": fl.Stream(())}, "expected `frame`, `video` or `time`"),
        ({"frame": fl.Stream(dtype="bytes")}, "expected str for stream `frame`"),
        ({"video": fl.Stream((), "float32")}, "expected an integer or str"),
        ({"time": fl.Stream(2, "float32")}, "expected a floating-point number"),
    ],
)
def test_streams_that_do_not_fit(folder, stream, expected):
    with pytest.raises(SchemaError, match=expected):
        video.folder(folder, **stream)


def test_folders_without_videos(tmp_path):
    with pytest.raises(DataError, match="expected files such as"):
        video.folder(tmp_path)
    (tmp_path / "a.mp4").write_bytes(b"none")
    with pytest.raises(DataError, match="expected a video file"):
        video.folder(tmp_path)


def test_the_digest_is_that_of_the_content(folder, tmp_path):
    corpus = video.folder(folder)
    shutil.copytree(folder, tmp_path / "copy")
    assert video.folder(tmp_path / "copy").digest() == corpus.digest()
    make_video(tmp_path / "copy" / "c", "mpeg4", frames=39)
    assert video.folder(tmp_path / "copy").digest() != corpus.digest()


def decoding(corpus, seed=5, **options):
    decode = video.Decode("frame", size=SIZE)
    return fl.MinibatchSource(corpus, seed=seed, max_sweeps=2, transforms=[decode], **options)


def test_it_resumes_anywhere_under_other_sizes(folder):
    corpus = video.folder(folder)
    assert_resumes(lambda: decoding(corpus), sizes=(1, 7, 30), minibatches=3)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_what_one_gets(folder, world):
    corpus = pickle.loads(pickle.dumps(video.folder(folder)))
    expected = sequences_of(decoding(corpus).minibatches(12))
    assert len(expected) == 240
    sources = [decoding(corpus, partition=(rank, world)) for rank in range(world)]
    got = []
    while parts := [part for source in sources if (part := source.next_minibatch(12))]:
        got += sequences_of(parts)
    assert got == expected


def test_a_state_goes_on_in_another_world(folder):
    corpus = video.folder(folder)
    expected = sequences_of(decoding(corpus).minibatches(12))
    source = decoding(corpus, partition=(1, 2))
    for _ in range(4):
        source.next_minibatch(12)
    alone = decoding(corpus)
    alone.load_state_dict(source.state_dict())
    assert sequences_of(alone.minibatches(50)) == expected[48:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_decodes(folder, workers):
    corpus = video.folder(folder)
    loader = fl.DataLoader(
        corpus, batch_size=16, shuffle=True, seed=3, transforms=[video.Decode("frame", size=SIZE)], num_workers=workers
    )
    seen = 0
    for batch in loader:
        for number, at, frame in zip(batch["video"], batch["time"], batch["frame"], strict=True):
            whole = decode_all(corpus.files[int(number)])
            np.testing.assert_array_equal(frame, whole.frames[whole.times.index(float(at))])
            seen += 1
    assert seen == 120


# ---- the index while it is written -----------------------------------------------------------------------


def test_a_process_that_is_killed_while_indexes_are_written(tmp_path, own_cache):
    """Whatever remains in the cache, the frames are those of the files."""
    first = make_video(tmp_path / "0", frames=6)
    for i in range(1, 40):
        shutil.copy(first, tmp_path / f"{i}.mp4")
    expected = decode_all(first).times * 40
    code = f"from feedline import video\nprint('ready', flush=True)\nvideo.folder({str(tmp_path)!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    folder, rng = own_cache / "feedline" / "video", random.Random(1)
    for _ in range(3):
        process = Python(["-c", code], env=environment, stdout=subprocess.PIPE)
        process.stdout.readline()
        begun = len(os.listdir(folder)) if folder.exists() else 0
        while process.poll() is None and (len(os.listdir(folder)) if folder.exists() else 0) <= begun:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    corpus = video.folder(tmp_path)
    assert np.concatenate([chunk["time"].rows for chunk in rows_of(corpus)]).tolist() == expected
    assert not [name for name in os.listdir(folder) if name.endswith(".tmp")]


def test_a_damaged_index_is_made_again(tmp_path, own_cache):
    path = make_video(tmp_path / "a", frames=20)
    expected = [row for chunk in rows_of(video.VideoDeserializer(path)) for row in chunk["time"].rows.tolist()]
    (file,) = (own_cache / "feedline" / "video").iterdir()
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    code = "import sys\nfrom feedline import video\ncorpus = video.VideoDeserializer(sys.argv[1])\n"
    code += "print(*[t for c in range(len(corpus.chunks())) for t in corpus.read(c)['time'].rows.tolist()])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for damage in ("flip", "cut", "empty"):
        data = bytearray(whole)
        if damage == "flip":
            data[int(rng.integers(64, len(data)))] ^= 16
        file.write_bytes({"flip": bytes(data), "cut": whole[: len(whole) // 2], "empty": b""}[damage])
        process = Python(["-c", code, str(path)], env=environment, stdout=subprocess.PIPE, text=True)
        output, _ = process.communicate(timeout=60)
        assert list(map(float, output.split())) == expected
        assert file.read_bytes() == whole


def test_the_index_has_the_version_of_the_file(tmp_path):
    path = make_video(tmp_path / "a", frames=20)
    version = version_of(str(path))
    assert packets_of(version) is packets_of(version_of(str(path)))
    os.utime(path, ns=(0, 0))
    assert version_of(str(path)) != version
