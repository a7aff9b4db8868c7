"""Reports of runs, from their logs.

`feeding` sums up the minibatches of a feed, `log` reads the lines of a run, and `report_page` makes a page of them.
Requires only NumPy.
"""

from feedline.runs.log import log_feed
from feedline.runs.report_page import report

__all__ = ["log_feed", "report"]
