"""Networks as pages: the file's content, and its use in a browser, by mouse and by keyboard alone."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from functools import cache

import pytest
from torch import nn

import feedline as fl
from feedline.graph.graph import Graph, Operation, OutputReference, Scope, TensorType
from feedline.graph.importers import graph_of
from feedline.graph.styles import STYLES
from tests.graph import known_networks as known
from tests.runs import chromium

needs_chromium = pytest.mark.skipif(chromium.PROGRAM is None, reason="chromium is not installed")
ITEMS = "[...document.querySelectorAll('#picture .item')]"
NAMES = f"{ITEMS}.map(one => one.item.lines[0])"
FOCUS = "document.activeElement.item ? document.activeElement.item.lines[0] : document.activeElement.tagName"


def data_of(page):
    """What the script of a page is given."""
    return json.loads(re.search(r'id="network">(.*?)</script>', page.read_text("utf-8"))[1])


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One for all tests."""
    opened = chromium.Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    """A page with frames in frames, and folded ones."""
    path = tmp_path_factory.mktemp("pages") / "resnet.html"
    return fl.plot_network(known.resnet18(), (1, 3, 224, 224), to=path, title="ResNet-18", depth=3)


def test_the_page_has_boxes_frames_and_costs(resnet):
    data = data_of(resnet)
    assert len(data["boxes"]) == 43
    assert [frame["lines"][0] for frame in data["frames"][:2]] == ["layer1: Sequential", "0 … 1: BasicBlock ×2"]
    first = data["boxes"][1]
    assert first["lines"] == ["Conv2d", "conv1", "7×7, stride 2, padding 3,", "64 filters", "9,408 parameters"]
    assert ["output", "1×64×112×112"] in first["facts"]
    assert ["multiply-adds", "118,013,952"] in first["facts"]
    assert ["input", "1×3×224×224 from x"] in first["facts"]
    layer = data["frames"][0]
    assert ["parameters", "73,984"] in layer["facts"]
    assert ["input", "1×64×56×56 from maxpool"] in layer["facts"]
    assert ["drawn once", "0 to 1, 2 modules; numbers are those of one"] in data["frames"][1]["facts"]
    assert data["frames"][1]["closed"] == ["7 boxes", "73,984 parameters in each"]
    text = resnet.read_text("utf-8")
    assert "11,689,512</b> parameters" in text
    assert resnet.stat().st_size < 150_000


def test_pages_need_no_graphviz(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "graphviz", None)
    monkeypatch.delitem(sys.modules, "feedline.graph.digraph", raising=False)
    page = fl.plot_network(nn.Linear(2, 3), (1, 2), to=tmp_path / "net.html")
    assert [box["family"] for box in data_of(page)["boxes"]] == ["input", "product", "input"]
    with pytest.raises(ModuleNotFoundError, match="graphviz is not installed"):
        fl.plot_network(nn.Linear(2, 3), (1, 2), to=tmp_path / "net.svg")


def test_depth_and_number_of_boxes_decide_what_is_open(tmp_path):
    deep = nn.Sequential(*[nn.Sequential(nn.Linear(2, 2 + i % 2), nn.Linear(2 + i % 2, 2)) for i in range(40)])

    def are_open(**settings):
        page = fl.plot_network(deep, (1, 2), to=tmp_path / "net.html", fold=False, **settings)
        return {frame["open"] for frame in data_of(page)["frames"]}

    assert are_open() == {False}  # 80 boxes are too many
    assert are_open(depth=1) == {True}
    assert are_open(depth=0) == {False}
    small = fl.plot_network(nn.Sequential(nn.Sequential(nn.ReLU())), (1, 2), to=tmp_path / "small.html", depth=None)
    assert [frame["open"] for frame in data_of(small)["frames"]] == [True]


def test_weights_are_shown_on_demand(tmp_path):
    page = fl.plot_network(nn.Linear(2, 3), (1, 2), to=tmp_path / "a.html", hide_weights=False, legend=False)
    assert data_of(page)["boxes"][1]["lines"][-2:] == ["weight: 3×2", "bias: 3"]
    assert 'class="legend"' not in page.read_text("utf-8")


@pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot is not installed")
def test_other_endings_are_graphviz(tmp_path):
    written = fl.plot_network(nn.Linear(2, 3), (1, 2), to=tmp_path / "net.svg")
    assert written == tmp_path / "net.svg"
    assert ">Linear<" in written.read_text("utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["net.svg"]
    with pytest.raises(ValueError, match=r"expected an ending \.html or a format of Graphviz, got .*\.nonsense"):
        fl.plot_network(nn.Linear(2, 3), (1, 2), to=tmp_path / "net.nonsense")


def test_what_a_page_does_not_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected no node_attrs for a page"):
        fl.plot_network(nn.ReLU(), (1,), to=tmp_path / "a.html", node_attrs={"shape": "box"})
    with pytest.raises(ValueError, match="expected depth=None or a number of scopes from 0, got -1"):
        fl.plot_network(nn.ReLU(), (1,), to=tmp_path / "a.html", depth=-1)
    assert list(tmp_path.iterdir()) == []


def hostile():
    name = "</script><script>document.title='planted'</script>&amp;<b>"
    wide = TensorType((2, 3))
    operations = (
        Operation("x", "input", name, "input", outputs=(wide,)),
        Operation("y", name, name, scope=(name,), inputs=(OutputReference("x"),), outputs=(wide,), detail=name),
        Operation("z", "output", name, "output", inputs=(OutputReference("y"),)),
    )
    return Graph(operations, scopes={(name,): Scope(name, detail=name)}, notes=(name,)), name


@needs_chromium
def test_no_requests_and_no_markup_in_names(browser, tmp_path):
    graph, name = hostile()
    page = fl.plot_network(graph, to=tmp_path / "net.html", title=name)
    browser.console.clear()
    browser.requests.clear()
    browser.open(page)
    assert browser.value("document.title") == name
    assert browser.value("document.querySelector('#picture .box .first').textContent") == name
    assert browser.value("document.querySelectorAll('b').length") == 4  # the totals
    assert browser.requests == [page.resolve().as_uri()]
    assert browser.console == []


OVERLAPS = f"""(() => {{
  const items = {ITEMS}.map(one => [one.item, one.querySelector('.body').getBoundingClientRect()]);
  const places = new Map(items), wrong = [];
  const name = item => item.lines.join(' ');
  for (const [a, p] of items) {{
    for (const [b, q] of items) {{
      if (a === b || a.parent !== b.parent) continue;
      if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1) {{
        wrong.push(name(a) + ' | ' + name(b));
      }}
    }}
    const q = places.get(a.parent);
    if (q && (p.left < q.left || p.right > q.right || p.top < q.top + 15 || p.bottom > q.bottom)) wrong.push(name(a));
    const texts = [...a.drawn.querySelectorAll('text')].map(text => text.getBoundingClientRect());
    const beyond = t => t.left < p.left || t.right > p.right || t.top < p.top || t.bottom > p.bottom;
    if (texts.some(beyond)) wrong.push(name(a));
  }}
  return wrong;
}})()"""


def crossed(selector, apart=0):
    """JavaScript that counts texts, and lists those through which a line runs, or less than some pixels away."""
    return f"""(() => {{
      const texts = [...document.querySelectorAll('#picture {selector}')]
        .map(text => [text.textContent, text.getBoundingClientRect()]);
      const found = new Set(), apart = {apart};
      for (const way of document.querySelectorAll('#picture path.way')) {{
        const place = way.getScreenCTM(), long = way.getTotalLength();
        for (let at = 0; at <= long; at += 1) {{
          const p = way.getPointAtLength(at).matrixTransform(place);
          for (const [text, b] of texts) {{
            if (p.x > b.left - apart && p.x < b.right + apart && p.y > b.top && p.y < b.bottom) found.add(text);
          }}
        }}
      }}
      return [texts.length, ...found];
    }})()"""


@cache
def networks():
    """Graphs with frames in frames, ways around, and a layer of several operations. Read once."""
    return [
        graph_of(known.UNet(width=4), (1, 1, 64, 64)),
        graph_of(nn.Transformer(64, 2, 2, 2, 128, batch_first=True), [(1, 10, 64), (1, 12, 64)]),
        graph_of(nn.Sequential(nn.LSTM(4, 5, 2, bidirectional=True)), (3, 1, 4)),
        graph_of(known.resnet18(), (1, 3, 64, 64)),
    ]


@needs_chromium
@pytest.mark.parametrize("direction", ["TB", "BT", "LR", "RL"])
def test_boxes_are_apart_and_in_their_frames(browser, tmp_path, direction):
    """In every direction, with all frames open and with all closed, in which fewer boxes are drawn."""
    for graph in networks():
        page = fl.plot_network(graph, to=tmp_path / "net.html", direction=direction, expand=True)
        browser.console.clear()
        browser.open(page)
        counts = []
        for act in ("open", "close"):
            browser.value(f"document.getElementById('{act}').click()")
            assert browser.value(OVERLAPS) == []
            counts.append(browser.value(f"{ITEMS}.length"))
        assert counts[0] > counts[1]
        assert browser.console == []


@needs_chromium
@pytest.mark.parametrize("direction", ["TB", "BT", "LR"])
def test_no_line_touches_the_name_of_a_frame(browser, tmp_path, direction):
    """A name without enough room has several lines, or a wider frame."""
    for graph in networks()[:2]:
        browser.open(fl.plot_network(graph, to=tmp_path / "net.html", direction=direction))
        browser.value("document.getElementById('open').click()")
        names, *found = browser.value(crossed(".frame > text", apart=6))
        assert names > 3
        assert found == []


@needs_chromium
@pytest.mark.parametrize("direction", ["TB", "BT", "LR", "RL"])
def test_no_line_runs_through_a_shape(browser, tmp_path, direction):
    """Also where lines of a tensor part, where a box has several tensors, and where a way goes up next to another."""
    for graph in networks():
        browser.open(fl.plot_network(graph, to=tmp_path / "net.html", direction=direction))
        for act in ("open", "close"):
            browser.value(f"document.getElementById('{act}').click()")
            shapes, *found = browser.value(crossed(".shape"))
            assert shapes > 3
            assert found == []


@needs_chromium
@pytest.mark.parametrize(("direction", "edge", "sign"), [("TB", "top", 1), ("BT", "top", -1), ("LR", "left", 1)])
def test_data_flow_in_the_direction(browser, tmp_path, direction, edge, sign):
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    browser.open(fl.plot_network(model, (1, 2), to=tmp_path / "net.html", direction=direction))
    places = browser.value(f"{ITEMS}.map(one => one.querySelector('.body').getBoundingClientRect().{edge})")
    assert len(places) == 5
    assert places == sorted(places, reverse=sign < 0)
    ends = browser.value("[...document.querySelectorAll('.way')].map(way => way.getAttribute('marker-end'))")
    assert ends == ["url(#arrow)"] * 4


@needs_chromium
def test_lines_meet_at_the_borders_of_frames(browser, resnet):
    """A tensor that goes into a frame goes on where the line before it ended."""
    browser.open(resnet)
    broken = """(() => {
      const ends = [...document.querySelectorAll('.way')].map(way => {
        const place = at => way.getPointAtLength(at).matrixTransform(way.getCTM());
        const [start, stop] = [0, way.getTotalLength()].map(place);
        return { start, stop, arrives: way.hasAttribute('marker-end'), edges: way.edges };
      });
      const near = (a, b) => Math.hypot(a.x - b.x, a.y - b.y) < 1.5;
      return ends.filter(one => !one.arrives).filter(one => !ends.some(two => near(one.stop, two.start))).length
        + 100 * ends.filter(one => one.arrives).length;
    })()"""
    assert browser.value(broken) == 100 * browser.value("JSON.parse(network.textContent).edges.length")


@needs_chromium
def test_frames_open_and_close_by_click(browser, resnet):
    browser.open(resnet)
    all_of_them = browser.value(f"{ITEMS}.length")
    assert all_of_them == 43 + 11
    first = browser.value("document.querySelector('.frame').getBoundingClientRect().top")
    browser.point(".frame .title", click=True)
    assert browser.value("document.querySelector('.shut').getAttribute('aria-expanded')") == "false"
    assert browser.value(f"{ITEMS}.length") == all_of_them - 8
    assert browser.value("document.querySelector('.shut').getBoundingClientRect().top") == pytest.approx(first, abs=2)
    assert browser.value("document.querySelector('.shut').textContent").endswith("7 boxes73,984 parameters")
    browser.point(".shut", click=True)
    assert browser.value(f"{ITEMS}.length") == all_of_them


@needs_chromium
def test_pointing_shows_shapes_and_costs(browser, resnet):
    browser.open(resnet)
    assert browser.value("told.textContent") == ""
    browser.point(".f-convolution")
    said = browser.value("told.textContent")
    assert all(
        text in said for text in ("Conv2d", "1×64×112×112", "multiply-adds118,013,952", "7×7, stride 2, padding 3")
    )
    assert "kernel_size" not in said
    assert browser.value("document.querySelectorAll('.way.near').length") == 2
    browser.point("h1")
    assert browser.value("told.textContent") == ""


@needs_chromium
def test_the_keyboard_alone_is_enough(browser, resnet):
    """Tab comes to the picture, arrows go through it, frames open and close, and the panel shows the same text."""
    browser.open(resnet)
    seen = []
    for _ in range(7):
        browser.press("Tab")
        seen.append(browser.value(FOCUS))
    assert seen == ["INPUT", *["BUTTON"] * 5, "x"]
    walked = []
    for _ in range(len(browser.value(NAMES)) - 1):
        browser.press("ArrowDown")
        walked.append(browser.value(FOCUS))
    assert ["x", *walked] == browser.value(NAMES)
    browser.press("Home")
    for _ in range(5):
        browser.press("ArrowDown")
    assert browser.value(FOCUS) == "layer1: Sequential"
    assert "1×64×56×56 from maxpool" in browser.value("told.textContent")
    before = browser.value(f"{ITEMS}.length")
    browser.press("ArrowLeft")
    assert browser.value(f"{ITEMS}.length") == before - 8
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert browser.value(FOCUS) == "0 … 1: BasicBlock ×2"
    browser.press("Enter")
    assert browser.value(f"{ITEMS}.length") == before - 7
    browser.press("ArrowLeft")
    assert browser.value(FOCUS) == "layer1: Sequential"
    browser.press("End")
    in_sight = "(({top, bottom}) => top >= 0 && bottom <= innerHeight)(document.activeElement.getBoundingClientRect())"
    assert browser.value(in_sight)
    wide = browser.value("picture.clientWidth")
    browser.press("+")
    assert browser.value("picture.clientWidth") > wide
    named = browser.value(f"{ITEMS}.map(one => one.getAttribute('aria-label'))")
    assert "Conv2d, conv1, 7×7, stride 2, padding 3, 64 filters, 9,408 parameters, convolution" in named[1]
    assert "multiply-adds 118,013,952" in named[1]


@needs_chromium
def test_the_search_opens_what_it_finds(browser, resnet):
    browser.open(resnet)
    browser.value("document.getElementById('close').click()")
    shut = browser.value(f"{ITEMS}.length")
    browser.press("/")
    browser.write("512 Filters layer4.0.conv2")
    assert browser.value("found.textContent") == "1 found"
    assert browser.value("[...document.querySelectorAll('.holds')].map(one => one.item.lines[0])") == [
        "layer4: Sequential"
    ]
    browser.press("Enter")
    assert browser.value("found.textContent") == "1 of 1"
    assert browser.value(f"{ITEMS}.length") > shut
    assert browser.value("[...document.querySelectorAll('.hit')].map(one => one.item.lines[1])") == ["conv2"]
    assert "512" in browser.value("told.textContent")
    browser.press("Escape")
    assert browser.value("search.value + found.textContent + document.querySelectorAll('.hit').length") == "0"
    browser.write("no such layer")
    assert browser.value("found.textContent") == "nothing found"


@needs_chromium
def test_the_search_takes_an_x_for_times_and_several_words(browser, resnet):
    browser.open(resnet, width=1600)
    counts = []
    for words in ("3×3", "3x3", "3X3 stride", "3x3 stride 128", "1x64x112X112"):
        browser.value("search.value = ''")
        browser.press("/")
        browser.write(words)
        counts.append(int(browser.value("found.textContent").split()[0]))
    assert counts[0] == counts[1] > counts[2] > counts[3] > 0
    assert counts[4] > 0


@needs_chromium
def test_typing_scrolls_to_what_is_found(browser, resnet):
    browser.open(resnet, width=1600)
    assert browser.value("picture.parentElement.scrollTop") == 0
    browser.press("/")
    browser.write("layer4.0 conv2")
    found = "document.querySelector('.hit').getBoundingClientRect()"
    room = "picture.parentElement.getBoundingClientRect()"
    assert browser.value(f"{found}.top >= {room}.top && {found}.bottom <= {room}.bottom")
    assert browser.value("document.activeElement.id") == "search"


@needs_chromium
def test_a_picture_that_fits_is_legible(browser, tmp_path):
    """A long picture is as wide as the room, or at seven tenths of its size. Closed, it fits again, as at first."""
    long = nn.Sequential(*[nn.Linear(4 + n, 5 + n) for n in range(24)])
    browser.open(fl.plot_network(nn.Sequential(long, nn.Linear(28, 2)), (1, 4), to=tmp_path / "net.html"), width=1600)
    zoom = "picture.clientWidth / picture.viewBox.baseVal.width"
    assert browser.value(zoom) > 1
    browser.value("document.getElementById('open').click()")
    browser.value("document.getElementById('fit').click()")
    assert 0.69 < browser.value(zoom) < 0.72
    assert browser.value("picture.parentElement.scrollHeight > picture.parentElement.clientHeight")
    browser.value("document.getElementById('close').click()")
    assert browser.value(zoom) > 1
    browser.press("-")
    smaller = browser.value(zoom)
    browser.value("document.getElementById('open').click()")
    assert browser.value(zoom) == pytest.approx(smaller, abs=0.01)


IN_SIGHT = """(({scrollHeight, clientHeight, scrollWidth, clientWidth}) =>
  scrollHeight <= clientHeight && scrollWidth <= clientWidth)(picture.parentElement)"""


@needs_chromium
@pytest.mark.parametrize(("width", "height", "few"), [(1200, 900, 0), (500, 1000, 1)])
def test_a_page_opens_with_all_of_its_picture_in_sight(browser, tmp_path, width, height, few):
    """Frames close until it can be read, from inside. Which are open is a caller's choice with a depth."""
    closed = 0
    for graph in networks()[few:]:  # on a phone a U-Net of four levels would be too small
        browser.open(fl.plot_network(graph, to=tmp_path / "net.html"), width=width, height=height)
        assert browser.value(IN_SIGHT)
        assert browser.value("picture.parentElement.getBoundingClientRect().bottom <= innerHeight")
        closed += browser.value("document.querySelectorAll('.shut').length")
        browser.open(fl.plot_network(graph, to=tmp_path / "net.html", depth=9), width=width, height=height)
        assert browser.value("document.querySelectorAll('.shut').length") == 0
    assert closed > 5


@needs_chromium
def test_a_picture_follows_its_window(browser, tmp_path):
    page = fl.plot_network(networks()[0], to=tmp_path / "net.html")
    browser.open(page, width=1200, height=900)
    for height in (1400, 950):
        browser.call("Emulation.setDeviceMetricsOverride", width=1200, height=height, deviceScaleFactor=1, mobile=False)
        fitted = f"innerHeight === {height} && {IN_SIGHT} && picture.clientHeight > {height} - 220"
        end = time.monotonic() + chromium.SECONDS
        while not browser.value(fitted):
            assert time.monotonic() < end, browser.value("[innerHeight, picture.clientHeight]")
            time.sleep(0.05)


@needs_chromium
def test_light_dark_and_paper(browser, resnet):
    """The schemes differ. Paper has neither tools nor panel, is white, and no picture is wider than the page."""
    fills = []
    for scheme in ("light", "dark"):
        browser.open(resnet, scheme=scheme)
        fills.append(browser.value("getComputedStyle(document.querySelector('.f-convolution .body')).fill"))
    assert fills == ["rgb(240, 160, 106)", "rgb(86, 66, 54)"]
    assert STYLES["convolution"].fill == "#f0a06a"
    browser.call("Emulation.setEmulatedMedia", media="print")
    shown = "['.tools', '.keys', '#told'].map(one => getComputedStyle(document.querySelector(one)).display)"
    assert browser.value(shown) == ["none"] * 3
    assert browser.value("getComputedStyle(document.querySelector('.f-convolution .body')).fill") == fills[0]
    assert browser.value("picture.getBoundingClientRect().width <= innerWidth")
    assert browser.value(
        "document.querySelector('.scroll').scrollHeight === document.querySelector('.scroll').clientHeight"
    )
    browser.call("Emulation.setEmulatedMedia", media="")


@needs_chromium
@pytest.mark.parametrize("width", [320, 700, 1600])
def test_no_page_is_wider_than_its_window(browser, resnet, width):
    browser.open(resnet, width=width)
    browser.point(".f-convolution")
    assert browser.value("document.documentElement.scrollWidth") <= width


PLACES = f"""Object.fromEntries({ITEMS}.map(one => [one.item.names.split(' ')[0] + (one.item.isFrame ? ' frame' : ''),
  (({{left, right, top, bottom}}) => [left, right, top, bottom].map(Math.round))(
    one.querySelector('.body').getBoundingClientRect())]))"""


@needs_chromium
@pytest.mark.parametrize("are_open", [True, False])
def test_a_unet_has_its_way_up_next_to_its_way_down(browser, tmp_path, are_open):
    page = fl.plot_network(known.UNet(), (1, 1, 64, 64), to=tmp_path / "net.html", depth=9 if are_open else 0)
    browser.open(page)
    places = browser.value(PLACES)
    down = [places[f"down.{i} frame"] for i in range(5)]
    joins = [places[f"join.{i} frame"] for i in range(3, -1, -1)]
    cats = [places[key] for key in sorted((key for key in places if key.startswith("cat")), reverse=True)]
    assert [place[2] for place in down] == sorted(place[2] for place in down)
    assert [place[2] for place in cats] == sorted(place[2] for place in cats)
    for left, join, cat in zip(down, joins, cats, strict=False):
        assert join[3] < cat[2]  # from below
        assert left[1] < cat[0]
        if are_open:  # a frame gives its result at its lower border
            assert left[3] < cat[2] < left[3] + 120
        else:
            assert abs((left[2] + left[3]) - (cat[2] + cat[3])) <= 2
    assert places["output.0"][2] < down[0][2]
    assert browser.value(OVERLAPS) == []


@needs_chromium
def test_a_small_unet_has_levels_too(browser, tmp_path):
    """Two ways across, of tensors of two shapes. They are straight lines, and both ends are at one height."""
    browser.open(fl.plot_network(known.UNet(width=4, depth=2), (1, 1, 32, 32), to=tmp_path / "net.html", depth=0))
    places = browser.value(PLACES)
    cats = sorted(key for key in places if key.startswith("cat"))
    for down, cat in zip(("down.1 frame", "down.0 frame"), cats, strict=True):
        left, right = places[down], places[cat]
        assert left[1] < right[0]
        assert abs((left[2] + left[3]) - (right[2] + right[3])) <= 2
    flat = "[...document.querySelectorAll('.way')].filter(way => way.getBBox().height < 1).length"
    assert browser.value(flat) == 2


@needs_chromium
def test_a_decoder_is_next_to_its_encoder(browser, tmp_path):
    model = nn.Transformer(16, 2, 2, 2, 16, batch_first=True)
    page = fl.plot_network(model, [(1, 4, 16), (1, 5, 16)], to=tmp_path / "net.html")
    browser.open(page)
    places = browser.value(PLACES)
    encoder, decoder = places["encoder frame"], places["decoder frame"]
    assert encoder[1] < decoder[0]
    assert encoder[2] == decoder[2]
    assert places["src"][1] < places["tgt"][0]
    assert browser.value(OVERLAPS) == []
    only = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    browser.open(fl.plot_network(only, (1, 4), to=tmp_path / "other.html"))
    places = browser.value(PLACES)
    assert places["0 frame"][3] < places["1 frame"][2]  # what takes nothing else follows
