"""Contrast of colours, as WCAG defines it, and the palettes of style sheets."""

from __future__ import annotations

import re


def rgb(colour):
    """Red, green and blue of #rgb or #rrggbb, 0 to 255."""
    digits = colour.removeprefix("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    return [int(digits[i : i + 2], 16) for i in (0, 2, 4)]


def luminance(colour):
    """Relative luminance of #rgb or #rrggbb."""
    parts = (part / 255 for part in rgb(colour))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a, b):
    """Return the contrast of two colours, 1 to 21. 4.5 is AA for text, 3 for lines and large text."""
    low, high = sorted([luminance(a), luminance(b)])
    return (high + 0.05) / (low + 0.05)


def over(colour, ground, opacity):
    """Return the visible colour of one over another."""
    parts = zip(rgb(colour), rgb(ground), strict=True)
    return "#" + "".join(f"{round(opacity * own + (1 - opacity) * other):02x}" for own, other in parts)


def palettes(css):
    """Return the colours of a style sheet by name, in the light and in the dark.

    Paper has the light ones. The dark ones are for screens alone.
    """
    light = re.search(r"^:root \{(.*?)\}", css, re.DOTALL | re.MULTILINE)[1]
    dark = re.search(r"@media screen and \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}", css, re.DOTALL)[1]
    found = [dict(re.findall(r"--(\w+): (#[0-9a-f]+)", part)) for part in (light, dark)]
    return {"light": found[0], "dark": found[0] | found[1]}
