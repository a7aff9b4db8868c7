"""What corpora can do on top is said by their classes, and asked with `Deserializer.capability`."""

import numpy as np
import pytest

import feedline as fl
from feedline.feed import protocol
from feedline.feed.protocol import Fetchable, Mapped, can, chunk_extents, files_of, keys_of, read_slice
from feedline.feed.wrapper import Forwarding
from tests.laws.corpora import CountedCorpus


class Least(fl.Deserializer):
    """A corpus of the four members that every one has."""

    schema = fl.Schema({"x": fl.Stream(())})

    def chunks(self):
        return [fl.ChunkInfo(4, 4, 32)] * 3

    def read(self, chunk):
        return fl.Chunk(self.schema, {"x": fl.Value.from_dense(np.arange(4 * chunk, 4 * chunk + 4, dtype=np.float32))})

    def digest(self):
        return "00"


def test_a_corpus_without_capabilities_is_read_chunk_by_chunk():
    corpus = Least()
    assert read_slice(corpus, 1, 1, 3)["x"].rows.tolist() == [5, 6]
    assert keys_of(corpus, np.array([3, 1])).tolist() == [3, 1]
    assert chunk_extents(corpus, 0) == files_of(corpus, [0]) == ()
    assert not any(can(corpus, kind) for kind in (fl.RandomAccess, fl.Sliceable, fl.Keyed, Mapped, Fetchable))
    source = fl.MinibatchSource(corpus, seed=1, max_sweeps=1)
    assert sorted(i for m in source.minibatches(5) for i in m.ids.tolist()) == list(range(12))


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("random_access", True, "RandomAccess"),
        ("sliceable", True, "Sliceable"),
        ("fetchable", True, "Mapped"),
        ("view", lambda self, chunk: None, "RandomAccess"),
        ("read_slice", lambda self, chunk, start, stop: None, "Sliceable"),
        ("files", lambda self, chunks: (), "Mapped"),
        ("extents", lambda self, chunk: (), "Fetchable"),
        ("read_fetched", lambda self, chunk, pieces: None, "Fetchable"),
        ("keys", lambda self, ordinals: ordinals, "Keyed"),
    ],
)
def test_a_class_that_nobody_would_ask_is_refused(name, value, kind):
    """A method of a capability that the class does not have would never be called."""
    with pytest.raises(TypeError, match=rf"to be {kind}, as it has `{name}`: write class Mine\(Least, {kind}\)"):
        type("Mine", (Least,), {name: value})
    assert can(type("Mine", (Least, getattr(protocol, kind)), {name: value})(), getattr(protocol, kind))


@pytest.mark.parametrize("random_access", [True, False])
@pytest.mark.parametrize("sliceable", [True, False])
def test_a_corpus_made_of_another_can_do_what_that_can(random_access, sliceable):
    def corpus():
        return CountedCorpus([1] * 12, [4] * 3, random_access, sliceable=sliceable)

    for made in (Forwarding(corpus()), fl.Take(corpus(), 0, 8), fl.Concat(corpus(), corpus())):
        assert can(made, fl.RandomAccess) == random_access
        assert can(made, fl.Sliceable) == sliceable


def test_parts_of_a_concatenation_may_differ():
    """It can do what all of them can."""
    both = fl.Concat(CountedCorpus([1] * 4, [4], True, sliceable=True), CountedCorpus([1] * 4, [4], True))
    assert can(both, fl.RandomAccess)
    assert not can(both, fl.Sliceable)
    assert read_slice(both, 1, 1, 3).num_sequences == 2


@pytest.mark.parametrize("random_access", [True, False])
def test_a_mixture_of_parts_that_can_be_sliced_and_others(random_access):
    """The blocks of some parts are whole chunks of others."""
    sliced = CountedCorpus([1] * 40, [20] * 2, random_access, sliceable=True)
    whole = CountedCorpus([1] * 40, [20] * 2, random_access)
    mixture = fl.Mixture({"a": sliced, "b": whole}, {"a": 1, "b": 1}, when_empty="stop")
    with fl.MinibatchSource(mixture, seed=1, max_sweeps=1, shuffle=fl.Window(samples=30)) as source:
        assert sorted(i for m in source.minibatches(7) for i in m.ids.tolist()) == list(range(80))


def test_a_choice_has_the_keys_of_its_corpus():
    """A selection has other ordinals, also if the corpus has no keys."""
    assert keys_of(fl.Take(Least(), 5, 8), np.arange(3)).tolist() == [5, 6, 7]
