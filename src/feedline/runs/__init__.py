"""How did it go? What a run wrote about itself, read back and shown.

`feeding` adds up what a feed delivers, `log` reads a run's lines back, `report` makes one page of them. Needs NumPy
alone.
"""

from feedline.runs.report import report

__all__ = ["report"]
