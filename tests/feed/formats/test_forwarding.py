"""A corpus that forwards forwards everything."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import feedline as fl
from feedline.feed import protocol
from feedline.feed.protocol import Broadcast, OfParts, Ordered, RowsOfDocuments, Verifiable
from feedline.feed.wrapper import Forwarding

MDS = Path(__file__).parents[2] / "fixtures" / "mds"


def test_every_method_and_attribute_is_forwarded():
    """Except those that follow from others, and those that are constant, as its corpus knows its sizes."""
    corpus = fl.LitDataDeserializer(MDS.parent / "litdata" / "raw")
    methods = {name for name, one in vars(fl.Deserializer).items() if callable(one) and name[0] != "_"}
    assert methods - vars(Forwarding).keys() == set()
    assert fl.Deserializer.__annotations__.keys() - vars(Forwarding(corpus)).keys() == set()


CAPABILITIES = [
    kind
    for kind in vars(protocol).values()
    if isinstance(kind, type)
    and kind.__module__ == protocol.__name__
    and kind not in (fl.Deserializer, protocol.Capable)
    and kind.__bases__ == (object,)
    and not issubclass(kind, Exception)
]


class Least(fl.Deserializer):
    schema = fl.Schema({"x": fl.Stream(())})

    def chunks(self):
        return [fl.ChunkInfo(1, 1, 4)]

    def read(self, chunk):
        return fl.Chunk(self.schema, {"x": fl.Value.from_dense(np.zeros(1, np.float32))})

    def digest(self):
        return "00"


def test_what_a_corpus_can_do_is_what_its_wrapper_can_do():
    """And nothing else."""
    plain = Least()
    assert {OfParts, Ordered, RowsOfDocuments, Broadcast, Verifiable} <= set(CAPABILITIES)
    for kind in CAPABILITIES:
        able = type("Able", (Least, kind), {})()
        assert Forwarding(able).capability(kind) is not None, kind
        assert Forwarding(plain).capability(kind) is None, kind


def test_verified_is_what_the_corpus_verifies():
    corpus = Forwarding(fl.MDSDeserializer(MDS / "raw"))
    verified = corpus.verified()
    assert verified is not corpus
    assert verified.verified() is verified
    assert verified.select(np.arange(5)).values == corpus.select(np.arange(5)).values
