"""One HTML page that holds all it needs: no file, no network, no script but its own.

A content security policy in the page says so to the browser: nothing is loaded, and a script that got in by a name in
the data would not run. Every text that comes from data passes `escape` on its way in.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files


def document(title: str, body: str) -> str:
    """The page around ``body``, which is HTML."""
    style, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and texts."""
    cells = "\n".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in rows)
    return f'<table class="facts"><tbody>\n{cells}\n</tbody></table>'


def table(name: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls in its own box."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}"><table><thead><tr>{head}</tr>'
        f"</thead><tbody>\n{body}\n</tbody></table></div>"
    )


def picture(svg: bytes, says: str) -> str:
    """An SVG as an image: a browser runs no script in it and loads nothing for it."""
    data = base64.b64encode(svg).decode()
    return f'<p class="network"><img src="data:image/svg+xml;base64,{data}" alt="{escape(says)}"></p>'
