"""A `graphviz.Digraph` that notebooks show also where the program `dot` is missing; needs the package graphviz."""

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
        """For notebooks: the SVG; without `dot` a message with the source."""
        try:
            found: dict[str, str] = super()._repr_mimebundle_(include, exclude, **settings)
        except graphviz.ExecutableNotFound:
            return {"text/plain": f"{WITHOUT_DOT}\n\n{self.source}"}
        return found


def quoted(text: str) -> Any:
    """A text as it is: no escapes, no HTML, whatever is in it."""
    return graphviz.escape(text.replace("&", "&amp;"))  # DOT knows the entities of HTML
