"""Sequences taken apart into frames."""

import numpy as np
import pytest

import feedline as fl
from feedline.feed.protocol import Unsized
from feedline.testing import assert_resumes
from tests.laws.corpora import CountedCorpus

LENGTHS = [3, 1, 4, 2, 5, 1, 2]


def test_a_sample_is_a_sequence():
    corpus = fl.Frames(CountedCorpus(LENGTHS, [3, 4]))
    assert corpus.chunks() == [fl.ChunkInfo(8, 8, 80), fl.ChunkInfo(10, 10, 100)]
    assert corpus.lengths(np.arange(18)) is None
    rows = [[i, t] for i, n in enumerate(LENGTHS) for t in range(n)]
    found = corpus.select(np.arange(18))
    assert found["x"].rows.tolist() == rows
    assert found["y"].indices.tolist() == [i % 7 for i, _ in rows]
    assert found["x"].one_sample_each
    assert corpus.digest() != corpus.corpus.digest()


@pytest.mark.parametrize("order", ["feedline", "cntk"])
def test_frames_are_shuffled_one_by_one_and_resume(order):
    def make(**options):
        return fl.MinibatchSource(fl.Frames(CountedCorpus(LENGTHS, [3, 4])), max_sweeps=2, order=order, **options)

    assert_resumes(make)
    once = list(make(frame_mode=True).minibatches(5))
    rows = np.concatenate([m["x"].rows for m in once]).tolist()
    assert sorted(rows) == sorted([[i, t] for i, n in enumerate(LENGTHS) for t in range(n)] * 2)
    assert rows[:18] != sorted(rows[:18])


def test_an_unreadable_sequence_is_so_many_unreadable_frames():
    source = fl.MinibatchSource(
        fl.Frames(CountedCorpus(LENGTHS, [3, 4], bad=[2])), shuffle=False, max_sweeps=1, on_error="skip"
    )
    (minibatch,) = source.minibatches(99)
    assert minibatch.ids.tolist() == [0, 1, 2, 3, *range(8, 18)]


class Uneven(CountedCorpus):
    """y lacks the last sample of sequence 2."""

    def made(self, a, b):
        chunk = super().made(a, b)
        y = [sequence[: -1 if a + i == 2 else None] for i, sequence in enumerate(chunk["y"].dense().sequences())]
        sparse = fl.Value.one_hot([np.argmax(s, axis=1) for s in y], 7)
        return fl.Chunk(chunk.schema, {"x": chunk["x"], "y": sparse, "t": chunk["t"]}, chunk.errors)


def test_a_frame_that_a_stream_lacks_is_unreadable():
    chunk = fl.Frames(Uneven(LENGTHS, [3, 4])).read(0)
    assert list(chunk.errors) == [7]
    kept = chunk.take(np.arange(7))
    assert kept["x"].rows.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [2, 0], [2, 1], [2, 2]]
    assert kept["y"].indices.tolist() == [0, 0, 0, 1, 2, 2, 2]


def test_sizes_must_be_known():
    class UnknownSizes(CountedCorpus, Unsized):
        pass

    with pytest.raises(ValueError, match="knows its sizes"):
        fl.Frames(UnknownSizes([1], [1]))
