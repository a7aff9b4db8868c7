"""A self-contained HTML page: no other file, no network, no script except its own, if it has charts.

A content security policy in the page enforces this: nothing is loaded, and a script injected through a name in the data
would not run. Every text that comes from data is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

_DATE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")


def document(title: str, body: str, style: str = "", charts: bool = True, refresh_s: float | None = None) -> str:
    """Return the page around ``body``, which is HTML.

    Args:
        title: title of the window, plain text.
        body: HTML.
        style: CSS after the style that all pages share.
        charts: whether there are charts, which the script of the page reads out. Without charts there is no script.
        refresh_s: seconds after which the page loads itself again. None means never.
    """
    shared, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; " if charts else ""
    refresh = f'<meta http-equiv="refresh" content="{math.ceil(refresh_s)}">' if refresh_s is not None else ""
    live = f"<noscript>{refresh}</noscript>\n" if refresh else ""
    policy = f"default-src 'none'; style-src 'unsafe-inline'; {allowed}img-src data:"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{live}<title>{escape(title)}</title>
<style>
{shared}{style}</style>
</head>
<body>
{body}
{f"<script>{script}</script>" if charts else ""}
</body>
</html>
"""


def refresh_switch(refresh_s: float | None) -> str:
    """Return the switch that shows and stops the reloading of the page, an empty text without ``refresh_s``."""
    if refresh_s is None:
        return ""
    return (
        f'\n<p class="live"><label><input type="checkbox" id="refresh" data-seconds="{refresh_s:g}" checked> '
        f"live: loads itself again every {refresh_s:g} s, while no table is open</label></p>"
    )


def section(key: str, title: str, text: str) -> str:
    """Return a section with a heading around HTML."""
    return f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{title}</h2>\n{text}</section>'


def sections(parts: Iterable[tuple[str, str, str]]) -> str:
    """Return the main part of a page: sections of key, title and HTML, unless that is empty, and links to them."""
    shown = [part for part in parts if part[2]]
    links = "".join(f'<li><a href="#{key}">{title}</a></li>' for key, title, _ in shown)
    text = "\n".join(section(*part) for part in shown)
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n<main>\n{text}\n</main>'


def inline(text: str) -> str:
    """Return a text as HTML, in which dates are not broken at their hyphens."""
    return _DATE.sub(r"<time>\g<0></time>", escape(text))


def paragraph(text: str) -> str:
    """Return a paragraph, or an empty text for no text."""
    return f"<p>{escape(text)}</p>" if text else ""


def findings(sentences: Iterable[str]) -> str:
    """Return a list of findings."""
    return f'<ul class="findings">{"".join(f"<li>{escape(text)}</li>" for text in sentences)}</ul>'


def tiles(rows: Iterable[tuple[str, str]]) -> str:
    """Return a row of figures with their names."""
    cells = "".join(f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for value, name in rows)
    return f'<ul class="tiles">{cells}</ul>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and texts."""
    cells = "\n".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in rows)
    return f'<table class="facts"><tbody>\n{cells}\n</tbody></table>'


def table(name: str, heads: Sequence[str], rows: Iterable[Sequence[str]], whole: bool = False) -> str:
    """Return a table in a box in which it scrolls, only sideways if ``whole``."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "\n".join(f"<tr>{''.join(f'<td>{inline(text)}</td>' for text in row)}</tr>" for row in rows)
    kind = "scroll whole" if whole else "scroll"
    return (
        f'<div class="{kind}" tabindex="0" role="region" aria-label="{escape(name)}"><table><thead><tr>{head}</tr>'
        f"</thead><tbody>\n{body}\n</tbody></table></div>"
    )


def picture(svg: bytes, description: str) -> str:
    """Embed an SVG as an image, in which browsers run no script, and for which they load nothing."""
    data = base64.b64encode(svg).decode()
    return f'<p class="network"><img src="data:image/svg+xml;base64,{data}" alt="{escape(description)}"></p>'
