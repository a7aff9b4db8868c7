"""A contact sheet as one HTML page: pictures next to their training samples, without scripts and other files.

Boxes on a picture are drawn in an SVG whose units are the picture's pixels, so that they fit at any size. Every text is
escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from feedline._version import __version__
from feedline.runs import page

_COLOURS = 4
# Size of an original in the style sheet, in rem.
_WIDE, _HIGH = 19.0, 13.5


@dataclass(frozen=True)
class Box:
    """The part of a picture that a sample shows, in its upright pixels.

    Attributes:
        left, top, right, bottom: edges, beyond the picture if it was padded.
        mirrored, upside_down: whether it was flipped.
    """

    left: float
    top: float
    right: float
    bottom: float
    mirrored: bool = False
    upside_down: bool = False

    def words(self) -> list[str]:
        """Return size, place and flips."""
        texts = [f"{self.right - self.left:.0f} × {self.bottom - self.top:.0f}", f"at {self.left:.0f}, {self.top:.0f}"]
        return texts + [name for name, done in (("mirrored", self.mirrored), ("upside down", self.upside_down)) if done]


@dataclass(frozen=True)
class View:
    """One augmented sample.

    Attributes:
        sweep: sweep of the sample.
        png: its pixels, encoded.
        box: part of the picture that it shows.
        part: name of the view, if a picture has several in a sweep.
    """

    sweep: int
    png: bytes
    box: Box
    part: str = ""


@dataclass(frozen=True)
class Shown:
    """A picture of a corpus.

    Attributes:
        title: its label or name.
        facts: lines below the title.
        jpeg: the upright picture, made small, encoded. None if it cannot be shown.
        width, height: size of the upright picture in full, in pixels.
        views: augmented samples, none if it could not be decoded.
        error: error of the picture, or None.
    """

    title: str
    facts: Sequence[str]
    jpeg: bytes | None
    width: int
    height: int
    views: Sequence[View] = ()
    error: str | None = None


def html(
    name: str,
    lead: str,
    tiles: Iterable[tuple[str, str]],
    pictures: Iterable[Shown],
    about: Iterable[tuple[str, str]],
) -> str:
    """Return the page.

    Args:
        name: name of the corpus.
        lead: what was sampled, as HTML.
        tiles: (figure, label).
        pictures: pictures, in order.
        about: (name, text) pairs at the end.
    """
    cards = "\n".join(map(_card, pictures))
    body = f"""<header><h1>{escape(name)}</h1>
{lead}
{page.tiles(tiles)}
</header>
<main>
<ol class="sheet">
{cards}
</ol>
</main>
<section class="facts-of-page" aria-label="About this page"><div class="card">{page.facts(about)}</div></section>
<footer>Made by feedline {escape(__version__)}. Boxes show what each sample was cut from, in pixels of the upright
picture. Samples have exactly the pixels that training gets; originals are shown smaller.</footer>"""
    style = files(__package__).joinpath("picture_page.css").read_text("utf-8")
    return page.document(f"Pictures of {name}", body, style, charts=False)


def _card(shown: Shown) -> str:
    facts = "".join(f"<p>{escape(line)}</p>" for line in shown.facts)
    error = f'<div class="broken"><p>{escape(shown.error)}</p></div>' if shown.error is not None else ""
    count = {1: " one", 2: " two"}.get(len(shown.views), "")
    items = "".join(_view(*item) for item in enumerate(shown.views))
    views = f'<ul class="views{count}">{items}</ul>' if items else ""
    return f'<li>{_original(shown)}{error}<div class="told"><h2>{escape(shown.title)}</h2>{facts}</div>{views}</li>'


def _view(number: int, view: View) -> str:
    lines = "".join(f"<span>{escape(words)}</span>" for words in view.box.words())
    return (
        f'<li><figure><img src="{_uri(view.png, "png")}" alt="{escape(_description(view))}">'
        f'<figcaption class="{_colour(number)}"><b>sweep</b> <i><b>{view.sweep}{view.part}</b></i>{lines}'
        "</figcaption></figure></li>"
    )


def _description(view: View) -> str:
    return f"sweep {view.sweep}{view.part}: {', '.join(view.box.words())}"


def _original(shown: Shown) -> str:
    if shown.jpeg is None:
        return ""
    width, height = shown.width, shown.height
    boxes = [view.box for view in shown.views]
    label = f"{shown.title}, {width} × {height}" + "".join(f"; {_description(view)}" for view in shown.views)
    marks = [f'<image href="{_uri(shown.jpeg, "jpeg")}" width="{width}" height="{height}" preserveAspectRatio="none"/>']
    if len(boxes) == 1:
        marks.append(f'<path class="shade" fill-rule="evenodd" d="M0 0H{width}V{height}H0Z{_path(boxes[0])}"/>')
    for number, box in reversed(list(enumerate(boxes))):
        marks += [f'<path class="halo" d="{_path(box)}"/>', f'<path class="box {_colour(number)}" d="{_path(box)}"/>']
    if len(boxes) > 1:
        marks += [_tag(number, view, max(width / _WIDE, height / _HIGH)) for number, view in enumerate(shown.views)]
    # Room around it, for the lines of boxes that reach the edge.
    edge = max(width, height) / 60
    view_box = f"{-edge:.1f} {-edge:.1f} {width + 2 * edge:.1f} {height + 2 * edge:.1f}"
    return f'<svg class="original" viewBox="{view_box}" role="img" aria-label="{escape(label)}">{"".join(marks)}</svg>'


def _path(box: Box) -> str:
    return f"M{box.left:.1f} {box.top:.1f}H{box.right:.1f}V{box.bottom:.1f}H{box.left:.1f}Z"


def _tag(number: int, view: View, rem: float) -> str:
    """Draw the name of a sample at the top left of a box, in rows of three where corners meet."""
    side = 1.2 * rem
    x, y = max(0.0, view.box.left) + number % 3 * side, max(0.0, view.box.top) + number // 3 * side
    return (
        f'<g class="{_colour(number)}"><rect class="tag" x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" '
        f'height="{side:.1f}"/><text transform="translate({x + side / 2:.1f} {y + side * 0.8:.1f}) '
        f'scale({side * 0.85:.2f})" text-anchor="middle">{view.sweep}{view.part}</text></g>'
    )


def _colour(number: int) -> str:
    return f"v{number % _COLOURS + 1}"


def _uri(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
