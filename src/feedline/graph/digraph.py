"""A `graphviz.Digraph` that notebooks can show even without the program `dot`. Requires the package graphviz.

Graphviz lays out the graph, and repeats this while names of frames have no room. Then the names move to places that no
arrow crosses, and the rest is drawn as laid out, in any format.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from feedline.errors import install_line

try:
    import graphviz
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"graphviz is not installed; run: {install_line('viz')}") from error

from feedline.graph.frame_names import FrameNames, NameLayout
from feedline.graph.labels import printable

WITHOUT_DOT = (
    "The program `dot` is not installed, so there is no picture: install Graphviz (Debian: apt-get install graphviz). "
    "Its source, for any Graphviz viewer:"
)
_FRAME = "subgraph cluster_"
_TRIES = 5  # largest number of layouts, made until all names of frames have room
_LONG = 200_000  # characters of a graph that is laid out only once, as dot takes seconds


class Picture(graphviz.Digraph):
    """A drawing: SVG in notebooks, DOT as text, files by `render`."""

    def pipe(self, format: str | None = None, *args: Any, **settings: Any) -> Any:
        """Return the picture in a format, as `graphviz.Digraph.pipe` does."""
        if args or settings.keys() - {"encoding", "quiet"} or _FRAME not in self.source:
            return super().pipe(format, *args, **settings)
        quiet = bool(settings.get("quiet"))
        output = _render_layout(self._place_names(quiet).encode(), format or self.format, quiet)
        encoding = settings.get("encoding")
        return output if encoding is None else output.decode(encoding)

    def _place_names(self, quiet: bool) -> str:
        """Return the graph with the places of its layout, and with a place for each name of a frame."""
        source, layouts, attempts = self.source, dict[str, NameLayout](), list[FrameNames]()
        for _ in range(_TRIES if len(source) < _LONG else 1):
            laid_out = graphviz.pipe(self.engine, "dot", source.encode(), quiet=quiet)
            laid_out = _render_layout(laid_out, "dot", quiet)  # moves the origin once
            names = FrameNames(laid_out.decode(), json.loads(_render_layout(laid_out, "json0", quiet)), layouts)
            attempts.append(names)
            if not names.crossed:
                break
            source, layouts = names.with_new_layouts(self.source)
        return min(attempts, key=lambda names: names.crossed).draw()

    def render(self, *args: Any, **settings: Any) -> str:
        """Write a file and return its path, as `graphviz.Digraph.render` does."""
        written = str(super().render(*args, **settings))
        if _FRAME in self.source and not settings.keys() & {"engine", "renderer", "formatter", "neato_no_op"}:
            path = Path(written)
            path.write_bytes(self.pipe(path.suffix[1:]))
        return written

    def write(self, path: Path) -> Path:
        """Write a file in the format of its ending, and return its path.

        Raises:
            ValueError: the ending belongs to no format.
            RuntimeError: the program `dot` is not installed.
        """
        try:
            return Path(self.render(outfile=path, cleanup=True))
        except graphviz.RequiredArgumentError as error:
            raise ValueError(f"expected an ending .html or a format of Graphviz, got {path}") from error

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **settings: Any) -> dict[str, str]:
        """Return the SVG for notebooks, or without `dot` a message with the source."""
        try:
            bundle: dict[str, str] = super()._repr_mimebundle_(include, exclude, **settings)
        except graphviz.ExecutableNotFound:
            return {"text/plain": f"{WITHOUT_DOT}\n\n{self.source}"}
        return bundle


def _render_layout(graph: bytes, format: str, quiet: bool) -> bytes:
    """Draw a graph that has places. neato draws the layout of dot, as changes are disabled."""
    output: bytes = graphviz.pipe("neato", format, graph, neato_no_op=2, quiet=quiet)
    return output


def quote(text: str) -> Any:
    """Quote a text so that Graphviz reads no part of it as an escape or HTML."""
    return graphviz.escape(printable(text).replace("&", "&amp;"))  # DOT decodes HTML entities
