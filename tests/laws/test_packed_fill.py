"""How full rows of several rates are, for lengths drawn from the statistics of three sets of pictures and texts.

What is published is written beside each set. The shapes of the distributions are assumptions: text tokens are
log-normal, numbers of pictures geometric.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import feedline as fl

COUNT, CHUNK = 6_000, 2_000
LLAVA, MMC4, OBELICS = SETS = ("LLaVA-1.5", "MMC4", "OBELICS")


def lengths_of(name):
    """Text tokens and patches of each document."""
    rng = np.random.default_rng(SETS.index(name))
    if name == LLAVA:
        # The mixture for visual instruction tuning of LLaVA-1.5 has 665,000 conversations, of which 40,000 are
        # ShareGPT's, without a picture. A picture of 336 pixels is 24 x 24 patches of 14 pixels. The median of 180
        # text tokens and the sigma of 0.9 are assumptions.
        texts = rng.lognormal(math.log(180), 0.9, COUNT)
        return texts, 576 * (rng.random(COUNT) >= 40 / 665)
    if name == MMC4:
        # 101.2 million documents with 571 million pictures and 43 billion tokens. The sigma of 0.9 is an assumption, as
        # are 16 x 16 patches a picture.
        documents, pictures, tokens, sigma = 101.2e6, 571e6, 43e9, 0.9
    else:
        # 141 million pages with 353 million pictures and 115 billion tokens. The sigma of 0.8 is an assumption, as are
        # 16 x 16 patches a picture.
        documents, pictures, tokens, sigma = 141e6, 353e6, 115e9, 0.8
    texts = rng.lognormal(math.log(tokens / documents) - sigma**2 / 2, sigma, COUNT)
    return texts, 256 * rng.geometric(documents / pictures, COUNT)


@pytest.mark.parametrize("name", SETS)
def test_rows_of_pictures_and_texts_are_full(name):
    texts, patches = lengths_of(name)
    texts, patches = np.maximum(texts.astype(np.int64), 1), patches.astype(np.int64)
    streams = {
        stream: fl.Value.from_dense(np.zeros(lengths.sum(), dtype), np.concatenate([[0], np.cumsum(lengths)]))
        for stream, lengths, dtype in (("tokens", texts, np.uint16), ("patches", patches, np.float16))
    }
    packed = fl.Packed(
        fl.ArrayDeserializer(streams, chunk_sequences=CHUNK), 8192, cost={"tokens": 1, "patches": 0.25}, long="drop"
    )
    cost = texts + patches / 4
    rows = sum(info.sequences for info in packed.chunks())
    assert packed.fill == pytest.approx(cost[cost <= 8192].sum() / (8192 * rows), rel=1e-12)
    assert packed.fill >= 0.98
    assert packed.dropped == (cost > 8192).sum() <= COUNT / 100
