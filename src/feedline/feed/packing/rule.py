"""Choose the packing rule of a source."""

from __future__ import annotations

from feedline.feed.packing.balance import Balance
from feedline.feed.packing.cntk_filling import Local
from feedline.feed.packing.lanes import Lanes
from feedline.feed.packing.packer import Packer
from feedline.feed.packing.whole import Whole
from feedline.feed.protocol import Deserializer, says_where_batches_end


def rule_of(
    corpus: Deserializer, filling: str, truncation_length: int | None, arcs: int | None, balance: Balance | None = None
) -> Packer:
    """Return the rule for these arguments of `MinibatchSource`.

    Raises:
        ValueError: there is no such filling, the rule would ignore where the corpus ends minibatches, or it does not
            support shares by arc or by work.
    """
    if filling not in ("global", "cntk"):
        raise ValueError(f'expected filling to be "global" or "cntk", got {filling!r}')
    local = filling == "cntk"
    got = 'filling="cntk"' if local else "truncation_length"
    if arcs is not None and (local or truncation_length is not None):
        instead = "leave out fl.Arcs to divide minibatches by position"
        if local:
            instead = 'leave it out: arcs are for filling="global"'
        raise ValueError(f"expected whole sequences of global minibatches with fl.Arcs({arcs}), got {got}; {instead}")
    if balance is not None and arcs is not None:
        raise ValueError(
            f"expected either fl.Arcs({arcs}) or fl.Partition(balance=...), got both: with arcs each rank reads only "
            "the sequences of its own arcs"
        )
    if balance is not None and (local or truncation_length is not None):
        why = "each worker fills its own minibatches" if local else "a lane stays with the rank that has its state"
        raise ValueError(
            f"expected whole sequences of global minibatches with fl.Partition(balance=...), got {got}: {why}"
        )
    if says_where_batches_end(corpus) and (local or truncation_length is not None):
        raise ValueError(f"expected whole sequences of global minibatches for {corpus.name}, got {got}")
    if truncation_length is not None:
        return Lanes(truncation_length, local=local)
    if local:
        return Local()
    return Whole(arcs, balance)
