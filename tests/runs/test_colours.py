"""Colours of all pages, from their style sheets: contrast as WCAG's AA asks, in the light, in the dark, on paper."""

from __future__ import annotations

import itertools
import re
from importlib.resources import files

import pytest

from feedline.graph.styles import STYLES, dark
from tests.contrast import contrast, over, palettes

SHARED = files("feedline.runs").joinpath("page.css").read_text("utf-8")
PICTURES = files("feedline.cli").joinpath("picture_page.css").read_text("utf-8")
NETWORK = files("feedline.graph").joinpath("network_page.css").read_text("utf-8")
# Foregrounds and backgrounds. Text needs a contrast of 4.5, lines and borders with a meaning 3.
TEXT = {
    "report": (SHARED, "ink soft s1 s2 s3 s4 s5 s6", "card paper"),
    "network": (NETWORK, "ink soft", "card paper"),
}
LINES = {
    "report": (SHARED, "s1 s2 s3 s4 s5 s6 focus soft", "card paper"),
    "network": (NETWORK, "way focus hit soft ink", "card paper"),
}


def pairs(which, scheme):
    """Names and colours that lie on each other."""
    css, above, below = which
    colours = palettes(css)[scheme]
    return [(f"{a} on {b}", colours[a], colours[b]) for a in above.split() for b in below.split()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_have_contrast(scheme):
    for least, which in ((4.5, TEXT), (3.0, LINES)):
        for page, given in which.items():
            weak = [(name, round(contrast(a, b), 2)) for name, a, b in pairs(given, scheme) if contrast(a, b) < least]
            assert weak == [], page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_thin_lines_have_contrast_too(scheme):
    """Lines below others are drawn thin and translucent."""
    opacity = float(re.search(r"\.line\.faint .*?opacity: ([\d.]+)", SHARED)[1])
    colours = palettes(SHARED)[scheme]
    weak = [k for k in range(1, 7) if contrast(over(colours[f"s{k}"], colours["card"], opacity), colours["card"]) < 3]
    assert weak == []


def test_boxes_of_networks():
    """Words on every family's box have 7 in the light and 4.5 in the dark, borders on the card 3 in both."""
    light, night = palettes(NETWORK)["light"], palettes(NETWORK)["dark"]
    for family, style in STYLES.items():
        assert contrast(light["ink"], style.fill) >= 7, family
        assert contrast(night["ink"], dark(style.fill)) >= 4.5, family
        assert contrast(light["soft"], light["card"]) >= 3
        assert contrast(style.fill, night["card"]) >= 3, family


def test_tags_on_pictures():
    """Dark words on the coloured tags of samples have contrast. Tags of neighbours differ, and have numbers, too."""
    colours = palettes(PICTURES)["light"]
    assert all(contrast("#111", colours[f"v{k}"]) >= 4.5 for k in range(1, 5))


def test_paper_has_the_light_colours():
    """Browsers leave out backgrounds in print: the light words of the dark would be gone."""
    for css in (SHARED, PICTURES, NETWORK):
        assert re.findall(r"@media (?!screen and )[^{]*prefers-color-scheme", css) == []
    for css in (SHARED, NETWORK):
        printed = css[css.index("@media print") :]
        assert "background: #fff" in printed
        assert all(contrast(palettes(css)["light"][name], "#fff") >= 4.5 for name in ("ink", "soft"))


def test_lines_differ_without_colour():
    """Dashes distinguish the lines of a chart, without colour or order."""
    dashes = {1: "none"} | {
        k: re.search(rf"\.line\.s{k}, \.s{k} \.line \{{ stroke-dasharray: ([\d. ]+)", SHARED)[1] for k in range(2, 7)
    }
    assert len(set(dashes.values())) == 6


def test_findings_in_a_network_differ_without_colour():
    """What was found has a thicker border, a frame with something found in it a dashed one, the focus the thickest."""
    widths = {
        name: float(re.search(rf"{re.escape(name)} \.body \{{[^}}]*stroke-width: ([\d.]+)", NETWORK)[1])
        for name in (".hit", ".holds", ".current", ".item:focus")
    }
    plain = float(re.search(r"\n\.body \{[^}]*stroke-width: ([\d.]+)", NETWORK)[1])
    assert all(width >= 2 * plain for width in widths.values())
    assert widths[".item:focus"] > widths[".hit"] > widths[".current"]
    assert "stroke-dasharray" in re.search(r"\.holds \.body \{([^}]*)\}", NETWORK)[1]
    for one, other in itertools.combinations(STYLES, 2):
        assert STYLES[one][0::2] != STYLES[other][0::2]
