"""A `graphviz.Digraph` that notebooks can show even without the program `dot`; requires the package graphviz.

dot draws arrows over the names of frames. In SVG these names are moved to the front here, each with a white outline.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

try:
    import graphviz
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("graphviz is not installed; run: pip install 'feedline[viz]'") from error

WITHOUT_DOT = (
    "The program `dot` is not installed, so there is no picture: install Graphviz (Debian: apt-get install graphviz). "
    "Its source, for any Graphviz viewer:"
)
_FRAME = re.compile(r'<g id="[^"]*" class="cluster">.*?</g>', re.DOTALL)
_NAME = re.compile(r"<text.*?</text>\n?", re.DOTALL)
_OUTLINE = '<g class="names" stroke="white" stroke-width="4" stroke-linejoin="round" paint-order="stroke">'


class Picture(graphviz.Digraph):
    """A drawing: SVG in notebooks, DOT as text, files by `render`."""

    def pipe(self, format: str | None = None, *args: Any, **settings: Any) -> Any:
        """Return the picture in a format, as `graphviz.Digraph.pipe` does."""
        drawn = super().pipe(format, *args, **settings)
        if (format or self.format) != "svg":
            return drawn
        return with_names_in_front(drawn) if isinstance(drawn, str) else with_names_in_front(drawn.decode()).encode()

    def render(self, *args: Any, **settings: Any) -> str:
        """Write a file and return its path, as `graphviz.Digraph.render` does."""
        written = str(super().render(*args, **settings))
        if written.endswith(".svg"):
            path = Path(written)
            path.write_text(with_names_in_front(path.read_text("utf-8")), "utf-8")
        return written

    def write(self, path: Path) -> Path:
        """Write a file in the format of its ending, and return its path.

        Raises:
            ValueError: the ending is that of no format.
            RuntimeError: the program `dot` is not installed.
        """
        try:
            return Path(self.render(outfile=path, cleanup=True))
        except graphviz.RequiredArgumentError as error:
            raise ValueError(f"expected an ending .html or one of Graphviz' formats, got {path}") from error

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **settings: Any) -> dict[str, str]:
        """Return the SVG for notebooks, or without `dot` a message with the source."""
        try:
            found: dict[str, str] = super()._repr_mimebundle_(include, exclude, **settings)
        except graphviz.ExecutableNotFound:
            return {"text/plain": f"{WITHOUT_DOT}\n\n{self.source}"}
        return found


def with_names_in_front(svg: str) -> str:
    """Move the names of frames behind everything else in an SVG of Graphviz, so that they are drawn over it."""
    names = [name for frame in _FRAME.findall(svg) for name in _NAME.findall(frame)]
    if not names or _OUTLINE in svg:
        return svg
    bare = _FRAME.sub(lambda frame: _NAME.sub("", frame[0]), svg)
    end = bare.rindex("</g>")
    return f"{bare[:end]}{_OUTLINE}\n{''.join(names)}</g>\n{bare[end:]}"


def quoted(text: str) -> Any:
    """Quote a text so that nothing in it is read as an escape or HTML."""
    return graphviz.escape(text.replace("&", "&amp;"))  # DOT decodes HTML entities
