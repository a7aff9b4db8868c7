"""Colours and shapes of families of operations, in pictures and pages.

The colours follow Okabe and Ito's palette for colour-blind readers. In dark mode a page mixes them with the colour of
its boxes, and borders keep the original colours.
"""

from __future__ import annotations

from typing import NamedTuple


class Style(NamedTuple):
    """Style of a family: shape of Graphviz, fill, the shape in words, and style of Graphviz."""

    shape: str
    fill: str
    words: str
    style: str = "filled"


GREY = "#767676"  # 4.5:1 on white as on black
INK = "#000000"
# Shape and fill of each family: Okabe and Ito's colours, lightened for a contrast of at least 7:1 with black text.
STYLES = {
    "input": Style("oval", "#ffffff", "oval"),
    "parameter": Style("cylinder", "#dddddd", "cylinder"),
    "attention": Style("octagon", "#d9a3c2", "octagon"),
    "recurrent": Style("component", "#e69f00", "box with tabs"),
    "normalisation": Style("box", "#f0e442", "round corners", "rounded,filled"),
    "dropout": Style("box", "#e8e3b0", "dashed round corners", "rounded,filled,dashed"),
    "convolution": Style("box3d", "#f0a06a", "block"),
    "pooling": Style("invtrapezium", "#9fd3f0", "funnel"),
    "activation": Style("hexagon", "#7fd0b4", "hexagon"),
    "loss": Style("doubleoctagon", "#f6c3a0", "double octagon"),
    "product": Style("box", "#8cbce0", "box"),
    "shape": Style("parallelogram", "#eeeeee", "slanted"),
    "other": Style("note", "#ffffff", "folded corner"),
}
DARK_BOX = "#1a1e22"
_SHARE = 0.28  # of the colour of a family in its boxes in dark mode, the largest with a contrast of 7:1 to text


def dark(fill: str) -> str:
    """Return the fill of the boxes of a family in dark mode, ``#rrggbb`` for ``#rrggbb``."""
    parts = [(int(fill[i : i + 2], 16), int(DARK_BOX[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(_SHARE * colour + (1 - _SHARE) * box):02x}" for colour, box in parts)
