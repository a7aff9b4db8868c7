"""A page as a browser has it: drawn, read by keyboard, light and dark, wide and narrow, without a network."""

from __future__ import annotations

import itertools
import json
import time

import pytest

import feedline as fl
from tests.contrast import contrast, luminance
from tests.runs import chromium
from tests.runs.logs import progress, start, write

pytestmark = pytest.mark.skipif(chromium.PROGRAM is None, reason="chromium is not installed")

FOCUS = (
    "document.activeElement.className || document.activeElement.getAttribute('href') || document.activeElement.tagName"
)
SCREEN = "document.querySelector('#loss .area')"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One for all tests."""
    opened = chromium.Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Of a run with everything."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "network.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="90" height="40"><image href="http://elsewhere.invalid/a.png"/>'
        '<script>console.log("in the picture")</script><rect width="90" height="40" fill="teal"/></svg>'
    )
    lines = [progress(100 * i, loss=1 / i, metric=0.5 / i) for i in range(1, 6)]
    return fl.report(write(folder / "run.jsonl", [start(), *lines]))


def test_no_requests_and_no_messages(browser, page):
    """Only the file is read, without an error, a warning or a line in the console. The network's picture is drawn."""
    browser.console.clear()
    browser.requests.clear()
    browser.open(page)
    assert browser.value("document.querySelector('.network img').naturalWidth") == 90
    assert [url for url in browser.requests if not url.startswith("data:")] == [page.resolve().as_uri()]
    assert browser.console == []


def test_a_foreign_script_does_not_run(browser, page, tmp_path):
    """The policy of the page stops a script that passes the escaping. The test above would see it in this way."""
    planted = tmp_path / "planted.html"
    text = page.read_text("utf-8")
    planted.write_text(text.replace("</main>", "<script>document.title='planted'</script></main>"), encoding="utf-8")
    browser.console.clear()
    browser.open(planted)
    assert browser.value("document.title") != "planted"
    assert "Content Security Policy" in str(browser.console)


def test_lines_are_where_the_numbers_are(browser, page):
    """The highest loss is drawn at its place, the lowest lower. The line has the colour of its legend."""
    browser.open(page)
    box = "document.querySelector('#loss .line.s1').getBoundingClientRect()"
    area = f"{SCREEN}.getBoundingClientRect()"
    share = browser.value(f"(({box}).bottom - ({area}).top) / ({area}).height")
    top = browser.value(f"(({box}).top - ({area}).top) / ({area}).height")
    assert top == pytest.approx(0.0, abs=0.02)  # 1 of 1
    assert share == pytest.approx(0.8, abs=0.02)  # 0.2 of 1
    colours = "[...document.querySelectorAll('#loss .s1')].map(one => getComputedStyle(one).color)"
    assert len(set(browser.value(colours))) == 1


def test_values_are_read_with_the_keyboard(browser, page):
    """Tab goes through the sections' links, then chart by chart, each with its table. Arrows read the values."""
    browser.open(page)
    links = browser.value("document.querySelectorAll('nav a').length")
    seen = []
    for _ in range(links + 4):
        browser.press("Tab")
        seen.append(browser.value(FOCUS))
    assert seen == [
        *(f"#{key}" for key in browser.value("[...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))")),
        "area",
        "SUMMARY",
        "area",
        "SUMMARY",
    ]
    browser.open(page)
    for _ in range(links + 1):
        browser.press("Tab")
    told = []
    for key in ("ArrowRight", "ArrowRight", "End", "ArrowLeft", "Home"):
        browser.press(key)
        told.append(browser.value(f"{SCREEN}.getAttribute('aria-valuetext')"))
    assert told == [f"label samples {100 * i} · training {1 / i:.6g}" for i in (1, 2, 5, 4, 1)]
    assert browser.value("document.querySelector('#loss .readout').textContent") == told[-1]
    assert browser.value("document.querySelector('#loss .cursor').hidden") is False
    browser.press("Escape")
    assert browser.value("document.querySelector('#loss .cursor').hidden") is True


def test_screen_readers_have_names(browser, page):
    """Every chart and table has a distinct name. The words of a chart are its picture."""
    browser.open(page)
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    named = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]]
    sliders = [name for role, name in named if role == "slider"]
    assert len(sliders) == browser.value("document.querySelectorAll('.chart').length") == len(set(sliders))
    assert sliders[0] == (
        "Loss (loss) by label samples. training: from 1 at 100 to 0.2 at 500, lowest 0.2 at 500, highest 1 at 100."
    )
    assert ("image", "Graph of Net: layers and what flows between them") in named
    levels = browser.value("[...document.querySelectorAll('h1,h2,h3')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_have_contrast(browser, page, scheme):
    """Contrast as WCAG asks: 4.5 for text, 3 for lines, on the card, in both schemes. The schemes differ."""
    browser.open(page, scheme=scheme)
    read = "getComputedStyle(document.documentElement).getPropertyValue('--%s').trim()"
    card = browser.value(read % "card")
    assert (luminance(card) > 0.5) == (scheme == "light")
    for name, least in (("ink", 7), ("soft", 4.5), *((f"s{k}", 4.5) for k in range(1, 7))):
        found = contrast(card, browser.value(read % name))
        assert found >= least, f"--{name}: {found:.2f}"


@pytest.mark.parametrize("width", [320, 800, 1600])
def test_it_fits(browser, page, width):
    """No page is wider than its window."""
    browser.open(page, width=width)
    assert browser.value("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [320, 1600])
def test_long_names_fit(browser, tmp_path, width):
    """Names from data are as long as they like: of streams, models, learners, files, figures."""
    name = "a_long_name_" * 30
    line = progress(100, saving=0.5)
    line["fed"]["streams"] = {name: {"samples": 30, "padded": 120, "lengths": [0, 3, 9]}}
    about = start(model=name, learners=[name], streams={name: name})
    saved = {"event": "checkpoint", "samples": 100, "path": f"/{name}"}
    bad = {"sequence": 3, "path": name, "reason": name}
    (tmp_path / "quarantine.jsonl").write_text(json.dumps(bad) + "\n")
    end = {"event": "end", "samples": 100, "figures": {name: name}, "seconds_by_part": {name: 1.0}}
    browser.open(fl.report(write(tmp_path / "run.jsonl", [about, line, saved, end])), width=width)
    assert browser.value("document.documentElement.scrollWidth") <= width


def test_it_is_a_picture(browser, page):
    """Light and dark are drawn, and differ."""
    pictures = []
    for scheme in ("light", "dark"):
        browser.open(page, scheme=scheme)
        pictures.append(browser.picture())
    assert all(picture.startswith(b"\x89PNG") and len(picture) > 20_000 for picture in pictures)
    assert pictures[0] != pictures[1]


def test_a_live_page_loads_itself_again(browser, tmp_path):
    """It reloads until the run ends, but not while a value is read, a table is open, or reloading is switched off."""
    lines = [start(), progress(100, loss=1.0)]
    path = write(tmp_path / "run.jsonl", lines)
    page = fl.report(path, refresh_s=1)
    browser.console.clear()
    browser.open(page)
    rows = "document.querySelectorAll('#loss tbody tr').length"
    assert browser.value(rows) == 1

    def grow():
        lines.append(progress(100 * len(lines), loss=1 / len(lines)))
        return fl.report(write(path, lines), refresh_s=1)

    def later(expected):
        end = time.monotonic() + 150
        while browser.value(f"document.readyState === 'complete' ? {rows} : -1") != expected:
            assert time.monotonic() < end
            time.sleep(0.1)

    grow()
    later(2)
    browser.value("window.here = true; document.querySelector('details').open = true")
    grow()
    time.sleep(2.5)
    assert (browser.value(rows), browser.value("window.here")) == (2, True)  # somebody reads
    browser.value("document.querySelector('details').open = false")
    later(3)
    browser.value("document.getElementById('refresh').click(); window.here = true")
    grow()
    time.sleep(2.5)
    assert (browser.value(rows), browser.value("window.here")) == (3, True)  # switched off
    browser.value("document.getElementById('refresh').click()")
    later(4)
    lines.append({"event": "end", "samples": 100 * len(lines)})
    fl.report(write(path, lines), refresh_s=1)
    end = time.monotonic() + 150
    while browser.value("document.getElementById('refresh') !== null"):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert browser.console == []


VIEW = "document.querySelector('#loss svg[role=img], #loss .area svg').getAttribute('viewBox').split(' ').map(Number)"


def test_a_chart_is_zoomed_by_dragging_and_by_keys(browser, page):
    """What is outside is hidden, values are read where they are drawn, and Escape shows everything again."""
    browser.console.clear()
    browser.open(page)
    assert browser.value(VIEW) == [0, 0, 1000, 1000]
    browser.drag("#loss .area", 0.25, 0.75)
    left, _, width, _ = browser.value(VIEW)
    assert left == pytest.approx(250, abs=5)
    assert width == pytest.approx(500, abs=10)
    ticks = "[...document.querySelectorAll('#loss .%s span')].map(t => [t.textContent, parseFloat(t.style.%s)])"
    shown = browser.value(ticks % ("xs", "left"))
    assert len(shown) > 2
    assert all(0 <= place <= 100 for _, place in shown)
    places = browser.value("[...document.querySelectorAll('#loss tbody tr')].map(row => Number(row.dataset.x))")
    inside = [i for i, place in enumerate(places) if left <= place <= left + width]
    focus = f"{SCREEN}.focus()"
    browser.value(focus)
    browser.press("Home")
    for _ in range(inside[0]):
        browser.press("ArrowRight")
    at = browser.value("parseFloat(document.querySelector('#loss .cursor').style.left)")
    assert at == pytest.approx(100 * (places[inside[0]] - left) / width, abs=0.5)
    browser.press("+")
    assert browser.value(VIEW)[2] < width
    browser.press("-")
    browser.press("Escape")
    assert browser.value(VIEW) == [0, 0, 1000, 1000]
    browser.drag("#loss .area", 0.5, 0.505)  # a click is no zoom
    assert browser.value(VIEW) == [0, 0, 1000, 1000]
    assert browser.console == []


def ticks(browser, chart, axis, side):
    """Texts of the ticks of a chart, and their places in percent."""
    spans = f"[...document.querySelectorAll('#{chart} .{axis} span')]"
    return browser.value(f"{spans}.map(tick => [tick.textContent, parseFloat(tick.style.{side})])")


@pytest.mark.parametrize("base", [1.0, 10.0])
def test_a_zoomed_chart_is_scaled_to_what_is_in_sight(browser, tmp_path, base):
    """A loss that falls to a thousandth (drawn by powers of ten with base 10), with a little hill at its end."""
    losses = [1.0, 0.9] + [0.5 * base**-3 + (0.001 * base**-3 if 10 <= i < 15 else 0) for i in range(2, 21)]
    lines = [progress(100 * i, loss=loss) for i, loss in enumerate(losses)]
    browser.console.clear()
    browser.open(fl.report(write(tmp_path / "run.jsonl", [start(), *lines])))
    before = [ticks(browser, "loss", *axis) for axis in (("xs", "left"), ("ys", "bottom"))]
    browser.drag("#loss .area", 0.4, 0.9)
    _, top, _, height = browser.value(VIEW)
    assert height < 20  # of 1000
    assert top > 0
    across, upward = (ticks(browser, "loss", *axis) for axis in (("xs", "left"), ("ys", "bottom")))
    for found in (across, upward):
        assert len(found) > 2
        assert len({text for text, _ in found}) == len(found)
        assert all(-0.1 <= place <= 100.1 for _, place in found)
    assert [text for text, _ in across[:2]] == ["800", "1k"]
    numbers = [float(text) for text, _ in upward]
    assert numbers == sorted(numbers)
    assert losses[5] * 0.99 < numbers[0] < numbers[-1] < losses[12] * 1.01
    grids = browser.value("document.querySelectorAll('#loss .grid').length")
    assert grids == len(upward)
    browser.value(f"{SCREEN}.focus()")
    browser.press("Escape")
    browser.press("Escape")
    assert [ticks(browser, "loss", *axis) for axis in (("xs", "left"), ("ys", "bottom"))] == before
    assert browser.value(VIEW) == [0, 0, 1000, 1000]
    assert browser.console == []


def test_a_page_of_several_runs(browser, tmp_path):
    """Three runs: their curves have three colours and dashes, are zoomed, and nothing is wider than the window."""
    places = []
    for name in ("one", "another", "a_third_with_a_long_name_" * 4):
        places.append(tmp_path / name)
        places[-1].mkdir()
        lines = [progress(100 * i, loss=(len(places) + 1) / i) for i in range(1, 30)]
        write(places[-1] / "run.jsonl", [start(settings={"lr": str(len(places))}), *lines])
    page = fl.report(places)
    browser.console.clear()
    for width in (360, 1400):
        browser.open(page, width=width)
        assert browser.value("document.documentElement.scrollWidth") <= width
    first = "document.querySelectorAll('#curve-0 .area .line')"
    looks = f"[...{first}].map(l => getComputedStyle(l).color + getComputedStyle(l).strokeDasharray)"
    assert len(set(browser.value(looks))) == 3
    browser.drag("#curve-0 .area", 0.2, 0.6)
    assert browser.value("document.querySelector('#curve-0 .area').classList.contains('zoomed')")
    assert browser.console == []


def test_words_are_not_broken_on_a_phone(browser, tmp_path):
    """In the results of four runs, a wide table scrolls within its box."""
    places = [tmp_path / name for name in ("a", "b", "uninterrupted", "d")]
    for place in places:
        place.mkdir()
        lines = [progress(100 * i, loss=0.1234567 * i) for i in range(1, 4)]
        write(place / "run.jsonl", [start(), *lines, {"event": "end", "samples": 300, "interrupted": True}])
    browser.open(fl.report(places), width=400)
    broken = """[...document.querySelectorAll('#results th, #results td')].flatMap(cell => {
      const text = cell.firstChild?.textContent ?? "";
      const top = (i) => {
        const range = document.createRange();
        range.setStart(cell.firstChild, i);
        range.setEnd(cell.firstChild, i + 1);
        return range.getBoundingClientRect().top;
      };
      return [...text].map((_, i) => i).slice(1)
        .filter(i => /\\w\\w/.test(text.slice(i - 1, i + 1)) && top(i) > top(i - 1) + 4).map(() => text);
    })"""
    assert browser.value("document.querySelectorAll('#results td').length") > 20
    assert browser.value(broken) == []
    assert browser.value("document.documentElement.scrollWidth") <= 400


def test_every_part_of_a_chart_is_inside_of_it(browser, page):
    """Heading, explanation, legend, picture, table: within their card, below each other, nothing over another card."""
    browser.open(page, width=1100)
    outside = """[...document.querySelectorAll('.chart')].flatMap(chart => {
      const card = chart.getBoundingClientRect();
      const parts = [...chart.querySelectorAll('h3, .says, .legend, figure, figcaption, details')];
      return parts.map(part => [part.className || part.tagName, part.getBoundingClientRect()])
        .filter(([, box]) => box.left < card.left || box.right > card.right || box.top < card.top
          || box.bottom > card.bottom).map(([name]) => name);
    })"""
    assert browser.value(outside) == []
    assert browser.value("getComputedStyle(document.querySelector('.legend')).position") == "static"


def test_a_wide_network_can_be_read_on_a_phone(browser, tmp_path):
    """It is not shrunk until its text is illegible, but scrolls in its box. On a desk all of it is in sight."""
    (tmp_path / "network.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="1500" height="90"></svg>')
    page = fl.report(write(tmp_path / "run.jsonl", [start(), progress(100)]))
    picture = "document.querySelector('.network img').clientWidth"
    browser.open(page, width=500)
    assert browser.value(picture) == 1500
    assert browser.value("document.documentElement.scrollWidth") <= 500
    browser.open(page, width=1200)
    assert 900 < browser.value(picture) < browser.value("document.querySelector('.network').clientWidth")


def test_dates_stay_on_a_line(browser, tmp_path):
    saved = {"event": "checkpoint", "samples": 100, "time": 1.79e9, "path": "/data/runs/checkpoints/" + 9 * "00000-"}
    lines = [start(model="A" * 20, time=1.79e9), progress(100), saved]
    page = fl.report(write(tmp_path / "run.jsonl", lines))
    for width in range(320, 720, 40):
        browser.open(page, width=width)
        lines = "[...document.querySelectorAll('time')].map(date => date.getClientRects().length)"
        assert browser.value(lines) == [1, 1]


def test_an_open_table_leaves_its_neighbour_as_it_was(browser, page):
    """No chart is stretched around empty space below or above it."""
    browser.open(page)
    high = "[...document.querySelectorAll('#loss, #metric')].map(chart => Math.round(chart.clientHeight))"
    before = browser.value(high)
    browser.value("document.querySelector('#loss details').open = true")
    after = browser.value(high)
    assert after[0] > before[0] + 50
    assert after[1] <= before[1]
