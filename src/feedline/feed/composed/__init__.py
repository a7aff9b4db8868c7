"""Corpora made of others: which of them gives the next sequence.

`weights` are exact ratios, `schedule` a period of who stands where, `stages` which schedule holds from where on, all
pure arithmetic; `order` puts them above the orders of the parts, and `mixture` is what users declare.
"""

from feedline.feed.composed.mixture import Mixture

__all__ = ["Mixture"]
