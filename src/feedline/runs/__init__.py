"""Reports of runs, from what a run logged about itself.

`feeding` sums up what a feed delivers, `log` reads a run's lines back, `report` makes one page of them. Requires only
NumPy.
"""

from feedline.runs.log import log_feed
from feedline.runs.report import report

__all__ = ["log_feed", "report"]
