"""Choose the packing rule of a source."""

from __future__ import annotations

from feedline.feed.packing.lanes import Lanes
from feedline.feed.packing.local import Local
from feedline.feed.packing.packer import Packer
from feedline.feed.packing.whole import Whole
from feedline.feed.protocol import Deserializer


def rule_of(corpus: Deserializer, filling: str, truncation_length: int | None) -> Packer:
    """Return the rule for these arguments of `MinibatchSource`.

    Raises:
        ValueError: the corpus says where minibatches end, and the rule would not heed it.
    """
    local = filling == "cntk"
    if corpus.batched and (local or truncation_length is not None):
        got = 'filling="cntk"' if local else "truncation_length"
        raise ValueError(f"expected whole sequences of global minibatches for {corpus.name}, got {got}")
    if truncation_length is not None:
        return Lanes(truncation_length, local=local)
    return Local() if local else Whole()
