"""A `graphviz.Digraph` that notebooks can show even without the program `dot`; requires the package graphviz."""

from __future__ import annotations

from typing import Any

try:
    import graphviz
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("graphviz is not installed; run: pip install 'feedline[viz]'") from error

WITHOUT_DOT = (
    "The program `dot` is not installed, so there is no picture: install Graphviz (Debian: apt-get install graphviz). "
    "Its source, for any Graphviz viewer:"
)


class Picture(graphviz.Digraph):
    """A drawing: SVG in notebooks, DOT as text, files by `render`."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **settings: Any) -> dict[str, str]:
        """Return the SVG for notebooks, or without `dot` a message with the source."""
        try:
            found: dict[str, str] = super()._repr_mimebundle_(include, exclude, **settings)
        except graphviz.ExecutableNotFound:
            return {"text/plain": f"{WITHOUT_DOT}\n\n{self.source}"}
        return found


def quoted(text: str) -> Any:
    """Quote a text so that nothing in it is read as an escape or HTML."""
    return graphviz.escape(text.replace("&", "&amp;"))  # DOT decodes HTML entities
