"""First minibatches of a corpus that reads single sequences cheaply do not wait for their window."""

import threading

import numpy as np
import pytest

import feedline as fl
from feedline.feed.protocol import Selective
from feedline.feed.reading import decoding_reader

CHUNKS, EACH = 6, 10
TOTAL = CHUNKS * EACH


class Gated(fl.Deserializer, Selective):
    """Chunks are read once the gate is open, single sequences at any time. Sequence 13 cannot be read."""

    def __init__(self, selective=True, bad=()):
        self.schema = fl.Schema({"x": fl.Stream((), "int64")})
        self.selective, self.bad = selective, bad
        self.gate, self.selected, self.chunks_read = threading.Event(), [], []

    def chunks(self):
        return [fl.ChunkInfo(EACH, EACH, 8 * EACH)] * CHUNKS

    def capability(self, kind):
        return None if kind is Selective and not self.selective else super().capability(kind)

    def made(self, ordinals):
        errors = {i: fl.DataError("planted") for i, n in enumerate(ordinals.tolist()) if n in self.bad}
        return fl.Chunk(self.schema, {"x": fl.Value.from_dense(ordinals * 3)}, errors)

    def read(self, chunk):
        assert self.gate.wait(20)
        self.chunks_read.append(chunk)
        return self.made(np.arange(chunk * EACH, (chunk + 1) * EACH))

    def select(self, ordinals):
        self.selected.append(len(ordinals))
        return self.made(np.asarray(ordinals))

    def digest(self):
        return "00"


def rows(minibatch):
    return minibatch["x"].rows.tolist()


def expected(size, **options):
    corpus = Gated(selective=False)
    corpus.gate.set()
    with fl.MinibatchSource(corpus, seed=5, max_sweeps=2, **options) as source:
        return [rows(m) for m in source.minibatches(size)]


def test_first_minibatches_come_while_the_window_is_read():
    corpus, whole = Gated(), expected(7)
    with fl.MinibatchSource(corpus, seed=5, max_sweeps=2) as source:
        first = [rows(source.next_minibatch(7)) for _ in range(3)]
        assert corpus.chunks_read == []
        assert source.stats().wait_seconds == 0
        corpus.gate.set()
        rest = [rows(m) for m in source.minibatches(7)]
    assert first + rest == whole
    assert corpus.selected[:3] == [7, 7, 7]
    assert len(corpus.selected) <= decoding_reader._MAX_SELECTED + 1
    assert sorted(set(corpus.chunks_read)) == list(range(CHUNKS))


def test_after_some_of_them_the_window_is_waited_for():
    corpus, whole = Gated(), expected(5)
    with fl.MinibatchSource(corpus, seed=5, max_sweeps=2) as source:
        found = [rows(source.next_minibatch(5)) for _ in range(decoding_reader._MAX_SELECTED)]
        threading.Timer(0.05, corpus.gate.set).start()
        found += [rows(m) for m in source.minibatches(5)]
    assert found == whole
    assert len(corpus.selected) == decoding_reader._MAX_SELECTED


def test_a_state_in_the_middle_is_gone_on_from_at_once():
    corpus, whole = Gated(), expected(9)
    corpus.gate.set()
    with fl.MinibatchSource(corpus, seed=5, max_sweeps=2) as source:
        for _ in range(4):
            source.next_minibatch(9)
        state = source.state_dict()
    corpus = Gated()
    with fl.MinibatchSource(corpus, seed=5, max_sweeps=2) as source:
        source.load_state_dict(state)
        assert rows(source.next_minibatch(9)) == whole[4]
        assert corpus.chunks_read == []
        source.load_state_dict(state)
        assert rows(source.next_minibatch(9)) == whole[4]
        corpus.gate.set()
        assert [rows(m) for m in source.minibatches(9)] == whole[5:]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_unreadable_sequence_is_the_same_either_way(tmp_path, on_error):
    said = []
    for selective in (True, False):
        corpus = Gated(selective, bad=(13, 40))
        if not selective:
            corpus.gate.set()
        listed = tmp_path / f"{selective}.jsonl"
        how = fl.Quarantine(listed) if on_error == "skip" else on_error
        with fl.MinibatchSource(corpus, seed=5, max_sweeps=1, on_error=how) as source:
            found = []
            for _ in range(6):
                try:
                    found.append((rows(source.next_minibatch(10)), source.position.sequence))
                except fl.DataError as error:
                    found.append((str(error), source.position.sequence))
            corpus.gate.set()
        said.append((found, listed.read_text() if listed.exists() else None))
    assert said[0] == said[1]
    assert "planted" in str(said[0])


def test_read_ahead_of_zero_reads_nothing_ahead():
    corpus = Gated()
    corpus.gate.set()
    with fl.MinibatchSource(corpus, seed=5, read_ahead=0) as source:
        source.next_minibatch(7)
    assert corpus.selected == []


def test_transforms_and_frames_see_what_was_selected():
    corpus = Gated()
    double = fl.Map(lambda sequence: {"x": sequence["x"] * 2})
    with fl.MinibatchSource(corpus, seed=5, transforms=[double], frame_mode=True) as source:
        assert rows(source.next_minibatch(7)) == [2 * x for x in expected(7)[0]]
        corpus.gate.set()
