"""Corpora made of others: which of them gives the next sequence.

`weights` are exact ratios, `schedule` a period of who stands where, `stages` which schedule holds from where on, all
pure arithmetic; `order` puts them above the orders of the parts, and `mixture` is what users declare. `packed` makes
rows of documents, in an order of its own, and `unpacking` minibatches of rows.

`bucketed` makes batches of sequences of like length: `bucketed_order` within every window of another order, between
`boundaries`.
"""

from feedline.feed.composed.bucketed import Bucketed
from feedline.feed.composed.mixture import Mixture
from feedline.feed.composed.packed import Packed

__all__ = ["Bucketed", "Mixture", "Packed"]
