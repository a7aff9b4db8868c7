"""The default content of a picture: as much of a network as a screen has room for.

First this is everything, with runs of equal modules drawn once. If the picture has too many boxes to read at once, or
is too wide, runs of modules that differ only in widths are drawn once, too. If that is not enough, inner modules become
boxes, level by level. Widths are estimates in points, as dot decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from feedline.graph.folding import collapse, fold_repeats
from feedline.graph.graph import Graph, Operation
from feedline.graph.labels import box_lines
from feedline.graph.picture_columns import columns

MAX_BOXES = 60  # boxes that can be read at once, and that a page shows at first
_MAX_WIDTH = 1500.0  # points
_CHARACTER, _MARGIN = 6.0, 50.0  # points: width of a letter, and space around the text of a box


def fit(graph: Graph, expand: bool = False, height: float | None = None) -> tuple[Graph, str]:
    """Return a graph to draw, and a remark about parts that it does not show, empty if it shows all.

    Args:
        graph: graph of the network.
        expand: whether the inside of the library's layers is shown, too.
        height: points at which the picture continues in another column. None means one column.
    """
    everything = collapse(graph, None, expand)
    picture = fold_repeats(everything)
    if _fits(picture, height):
        return picture, ""
    picture = fold_repeats(everything, alike=True)
    deepest = max(len(operation.frames) for operation in everything.operations)
    depth = deepest
    while depth > 0 and not _fits(picture, height):
        depth -= 1
        picture = fold_repeats(collapse(graph, depth, expand), alike=True)
    return picture, "" if depth == deepest else f"depth={depth}: deeper modules are boxes"


def _fits(graph: Graph, height: float | None) -> bool:
    if len(graph.operations) > MAX_BOXES:
        return False
    parts = columns(graph, height) if height is not None else [list(graph.operations)]
    return sum(_width(graph, part) for part in parts) <= _MAX_WIDTH


def _width(graph: Graph, part: Sequence[Operation]) -> float:
    """Return the width of the widest row of a column."""
    rows, widths = dict[str, int](), Counter[int]()
    for operation in part:
        rows[operation.key] = 1 + max((rows[s.key] for s in operation.inputs if s.key in rows), default=0)
        longest = max(map(len, box_lines(graph, operation)))
        widths[rows[operation.key]] += _MARGIN + _CHARACTER * longest  # type: ignore[assignment]
    return max(widths.values(), default=0.0)
