"""A corpus that forwards forwards everything."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import feedline as fl
from feedline.feed.forwarding import Forwarding

MDS = Path(__file__).parents[2] / "fixtures" / "mds"


def test_every_method_and_attribute_is_forwarded():
    """But what follows from others, and what is always so: its corpus knows its sizes."""
    corpus = fl.LitDataDeserializer(MDS.parent / "litdata" / "raw")
    methods = {name for name, one in vars(fl.Deserializer).items() if callable(one) and name[0] != "_"}
    assert methods - vars(Forwarding).keys() == {"num_chunks"}
    assert fl.Deserializer.__annotations__.keys() - vars(Forwarding(corpus)).keys() == {"sized"}


def test_verified_is_what_the_corpus_verifies():
    corpus = Forwarding(fl.MDSDeserializer(MDS / "raw"))
    verified = corpus.verified()
    assert verified is not corpus
    assert verified.verified() is verified
    assert verified.select(np.arange(5)).values == corpus.select(np.arange(5)).values
