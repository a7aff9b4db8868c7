"""Draw the pictures of networks with `dot`. `python -m tests.docs.gallery` writes docs/images and the gallery.

docs/how-to/draw-networks.md runs unchanged: each picture is the page's variable with the name of the image. The
networks of docs/how-to/gallery.md are defined in tests/graph, and that page, with their tables, is generated. Layout
differs between versions of Graphviz, so tests compare nodes and edges by their titles, and not their places.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from torch import nn

import feedline as fl
import feedline.cntk as C
from feedline.graph.graph import Graph
from feedline.graph.importers import graph_of
from tests.docs.pages import ROOT, Program
from tests.graph import known_networks, known_symbols
from tests.graph.known_onnx import mobile_net

PAGE = ROOT / "docs" / "how-to" / "draw-networks.md"
GALLERY = ROOT / "docs" / "how-to" / "gallery.md"
IMAGES = ROOT / "docs" / "images"
LARGEST = 100 << 10  # bytes
COLUMNS = ("output", "parameters", "multiply-adds")

_IMAGE = re.compile(r"!\[[^\]]+\]\(\.\./images/(\w+)\.svg\)")
_SVG = "{http://www.w3.org/2000/svg}"
_PICTURE = (1, 3, 224, 224)


class Exhibit(NamedTuple):
    """A network of the gallery.

    Attributes:
        title: its name.
        says: description of its picture.
        make: a function that makes the network.
        inputs: as `plot_network` takes them.
        rows: depth of its table, None: no limit.
        settings: whether the table has settings. Lines of a page are no longer than 120 characters.
    """

    title: str
    says: str
    make: Callable[[], Any]
    inputs: Any
    rows: int | None = None
    settings: bool = True


def _tagger() -> Any:
    words = C.sequence.input_variable(943, is_sparse=True, name="words")
    layers = [C.layers.Embedding(150), C.layers.Recurrence(C.layers.LSTM(300)), C.layers.Dense(127)]
    return C.layers.Sequential(layers)(words)


EXHIBITS = {
    "resnet18": Exhibit(
        "ResNet-18", "stages of two blocks, of which the first has more", known_networks.resnet18, _PICTURE, rows=1
    ),
    "resnet50": Exhibit("ResNet-50", "four columns, one for each stage", known_networks.resnet50, _PICTURE, rows=1),
    "vit": Exhibit(
        "ViT-B/16", "patches, class token, twelve equal blocks, head", known_networks.vit_b_16, _PICTURE, rows=2
    ),
    "unet": Exhibit(
        "U-Net",
        "four levels down and up again, level by level",
        known_networks.UNet,
        (1, 1, 256, 256),
        rows=0,
    ),
    "nn_transformer": Exhibit(
        "nn.Transformer",
        "the encoder's stack, and next to it the decoder's",
        lambda: nn.Transformer(512, 8, 6, 6, 2048, batch_first=True),
        [(1, 10, 512), (1, 12, 512)],
        rows=1,
    ),
    "two_lstms": Exhibit(
        "LSTM",
        "two layers in both directions, and a head for each step",
        lambda: nn.Sequential(nn.LSTM(64, 128, 2, bidirectional=True), _First(), nn.Linear(256, 10)),
        (10, 1, 64),
    ),
    "inception": Exhibit(
        "Inception-v3, a symbol of MXNet",
        "its blocks and their branches, alike ones once",
        known_symbols.inception_v3,
        {"data": (1, 3, 299, 299)},
        rows=0,
        settings=False,
    ),
    "lenet": Exhibit(
        "LeNet, a symbol of MXNet", "convolutions and products in a row", known_symbols.lenet, {"data": (64, 1, 28, 28)}
    ),
    "tagger": Exhibit(
        "A tagger with an LSTM, under CNTK's names", "embedding, LSTM, a dense layer for each step", _tagger, None
    ),
    "mobile_net": Exhibit(
        "An ONNX file",
        "inverted residual blocks, as an exporter names them",
        mobile_net,
        None,
        rows=1,
        settings=False,
    ),
}


class _First(nn.Module):
    """The first of several results."""

    def forward(self, results: Any) -> Any:
        """Return it."""
        return results[0]


@cache
def exhibited(name: str) -> Graph:
    """The graph of a network of the gallery."""
    exhibit = EXHIBITS[name]
    return graph_of(exhibit.make(), exhibit.inputs)


def pictures() -> dict[str, Any]:
    """The pictures of the page, by name, as its code makes them. The code runs in the current directory."""
    program, text = Program(PAGE.name), PAGE.read_text("utf-8")
    program.run(text)
    return {name: program.names[name] for name in _IMAGE.findall(text) if name in program.names}


def known() -> dict[str, Any]:
    """Pictures of the gallery, by name."""
    return {name: fl.plot_network(exhibited(name), title=exhibit.title) for name, exhibit in EXHIBITS.items()}


def gallery() -> str:
    """The page of well-known networks, with a picture and a table of each."""
    parts = [
        "# Gallery",
        "This page has pictures and tables of well-known networks of four libraries, by [`fl.plot_network` and\n"
        "`fl.summary`](draw-networks.md). `python -m tests.docs.gallery` writes it, from the networks in tests/graph.",
    ]
    for name, exhibit in EXHIBITS.items():
        table = fl.summary(exhibited(name), depth=exhibit.rows, columns=(*["settings"] * exhibit.settings, *COLUMNS))
        limit = "" if exhibit.rows is None else f", down to depth {exhibit.rows}"
        parts += [
            f"## {exhibit.title}",
            f"![{exhibit.title}: {exhibit.says}](../images/{name}.svg)",
            f"The table{limit}:",
            f"```text\n{table}\n```",
        ]
    return "\n\n".join(parts) + "\n"


def titles(svg: str) -> Counter[tuple[str, str]]:
    """The parts of an SVG of Graphviz: kind (node, edge, cluster) and title of each, with their numbers."""
    groups = [g for g in ElementTree.fromstring(svg).iter(f"{_SVG}g") if g.get("class") in ("node", "edge", "cluster")]
    return Counter((str(g.get("class")), g.findtext(f"{_SVG}title") or "") for g in groups)


def main() -> None:
    """Write all images, and the gallery."""
    GALLERY.write_text(gallery(), "utf-8")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, picture in (pictures() | known()).items():
            Path(IMAGES, f"{name}.svg").write_text(picture.pipe(format="svg", encoding="utf-8"), "utf-8")


if __name__ == "__main__":
    main()
