"""Videos in stores: the frames of the files, and no more bytes than they take."""

import dataclasses

import numpy as np
import pytest

import feedline as fl
from feedline import video
from feedline.errors import DataError
from tests.servers.web import WebServer
from tests.video.clips import KINDS, decode_all, make_video

pytestmark = pytest.mark.frameworks("av", "torchcodec")

SIDE = 128
SIZE = (SIDE, SIDE)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Four videos of one episode each, of some hundred kilobytes."""
    folder = tmp_path_factory.mktemp("episodes")
    KINDS["large"] = dataclasses.replace(
        KINDS["h264"], options={**KINDS["h264"].options, "crf": "14", "x264-params": "keyint=10"}
    )
    KINDS["large, tables first"] = dataclasses.replace(KINDS["large"], container={"movflags": "faststart"})
    try:
        return [
            make_video(folder / str(i), ["large", "large, tables first"][i % 2], 60, SIDE, 1000 * i) for i in range(4)
        ]
    finally:
        del KINDS["large"], KINDS["large, tables first"]


@pytest.fixture
def web(files):
    with WebServer({f"/{path.name}": path.read_bytes() for path in files}) as server:
        yield server


def check(corpus, files, seed=1, size=20):
    """Compare all frames of a sweep, and return their number."""
    source = fl.MinibatchSource(corpus, seed=seed, max_sweeps=1, transforms=[video.Decode("frame", size=SIZE)])
    seen = 0
    for batch in source.minibatches(size):
        for number, time, frame in zip(batch["video"].rows, batch["time"].rows, batch["frame"].rows, strict=True):
            whole = decode_all(files[number])
            np.testing.assert_array_equal(frame, whole.frames[whole.times.index(time)])
            seen += 1
    return seen


def rows_of(corpus, ordinals):
    """Return a corpus of some of the frames."""
    chunk = corpus.select(np.array(ordinals))
    columns = {"video": chunk["video"].rows, "time": chunk["time"].rows}
    return fl.ArrayDeserializer({"frame": chunk["frame"].tolist(), **columns})


def opened(web, names, cache):
    return fl.open_corpus([f"{web.url}/{name}" for name in names], remote=fl.Remote(cache))


def test_a_sweep_fetches_the_files_once(web, files, tmp_path):
    names = [path.name for path in files]
    total = sum(path.stat().st_size for path in files)
    assert total > 1 << 20
    corpus = opened(web, names, tmp_path / "objects")
    assert web.sent_bytes < total / 5  # the tables
    assert check(corpus, files) == 240
    assert web.sent_bytes <= 1.02 * total
    corpus.close()


def test_episodes_that_are_not_used_are_not_fetched(web, files, tmp_path):
    corpus = opened(web, [path.name for path in files], tmp_path / "objects")
    tables = web.sent_bytes
    used = rows_of(corpus, range(60, 120))
    assert check(used, files) == 60
    assert web.sent_bytes - tables <= 1.02 * files[1].stat().st_size
    corpus.close()


def test_a_few_frames_fetch_their_groups_only(web, files, tmp_path):
    corpus = opened(web, [files[0].name], tmp_path / "objects")
    tables = web.sent_bytes
    assert check(rows_of(corpus, [33, 34]), files) == 2
    group = 10 / 60 * files[0].stat().st_size
    assert web.sent_bytes - tables < 2 * group + (256 << 10)
    corpus.close()


@pytest.mark.parametrize("indexed", [False, True])
def test_a_store_that_stops_to_answer_is_an_error_of_the_store(web, files, tmp_path, indexed):
    """It makes no frame unreadable, as the frames may be read later."""
    if indexed:  # so that no table was fetched before the decoder is opened
        opened(web, [files[0].name], tmp_path / "others").close()
    corpus = fl.open_corpus([f"{web.url}/{files[0].name}"], remote=fl.Remote(tmp_path / "objects", deadline_s=1))
    decode = video.Decode("frame", size=SIZE)
    source = fl.MinibatchSource(
        corpus, seed=1, max_sweeps=1, transforms=[decode], on_error=fl.Quarantine(tmp_path / "skipped")
    )
    web.before = lambda asked: (503, {})
    with pytest.raises(DataError, match=r"503|deadline|answer"):
        source.next_minibatch(5)
    assert not (tmp_path / "skipped").exists()
    web.before = lambda asked: None
    assert len(source.next_minibatch(5)["time"].rows) == 5
    corpus.close()


def test_a_corpus_that_is_closed_and_opened_again(web, files, tmp_path):
    """Decoders that stayed open belong to the objects of the closed one."""
    for name, ordinals in [("one", [5]), ("two", [25, 26]), ("two", [45])]:
        corpus = opened(web, [files[0].name], tmp_path / name)
        assert check(rows_of(corpus, ordinals), files) == len(ordinals)
        corpus.close()
