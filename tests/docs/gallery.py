"""Draws the pictures of docs/how-to/draw-networks.md with `dot`; `python -m tests.docs.gallery` writes docs/images.

The page runs unchanged: each picture is the page's variable with the name of the image. Layout differs
between versions of Graphviz, so a test compares what is drawn (nodes and edges by their titles), not where.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import feedline as fl
from tests.docs.pages import ROOT, Program
from tests.graph.known_networks import resnet50, vit_b_16

PAGE = ROOT / "docs" / "how-to" / "draw-networks.md"
IMAGES = ROOT / "docs" / "images"
LARGEST = 100 << 10  # bytes

_IMAGE = re.compile(r"!\[[^\]]+\]\(\.\./images/(\w+)\.svg\)")
_SVG = "{http://www.w3.org/2000/svg}"


def pictures() -> dict[str, Any]:
    """The pictures of the page, by name, as its code makes them; run in the current directory."""
    program, text = Program(PAGE.name), PAGE.read_text("utf-8")
    program.run(text)
    return {name: program.names[name] for name in _IMAGE.findall(text) if name in program.names}


def known() -> dict[str, Any]:
    """Pictures of networks that everybody knows, by name."""
    models = {"resnet50": (resnet50(), (1, 3, 224, 224)), "vit": (vit_b_16(), (1, 3, 224, 224))}
    named = {"resnet50": "ResNet-50", "vit": "ViT-B/16"}
    return {name: fl.plot_network(*given, title=named[name]) for name, given in models.items()}


def titles(svg: str) -> Counter[tuple[str, str]]:
    """What an SVG of Graphviz shows: kind (node, edge, cluster) and title of each part, with their numbers."""
    groups = [g for g in ElementTree.fromstring(svg).iter(f"{_SVG}g") if g.get("class") in ("node", "edge", "cluster")]
    return Counter((str(g.get("class")), g.findtext(f"{_SVG}title") or "") for g in groups)


def main() -> None:
    """Write all images."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, picture in (pictures() | known()).items():
            Path(IMAGES, f"{name}.svg").write_text(picture.pipe(format="svg", encoding="utf-8"), "utf-8")


if __name__ == "__main__":
    main()
