"""Maps of ranks and time on the page of a run: the numbers, the shades, the words, many ranks, resumed runs."""

from __future__ import annotations

import itertools
import re

import pytest

import feedline as fl
from feedline.runs.rank_map import STYLE
from tests.contrast import contrast, over, palettes
from tests.runs.chromium import PROGRAM, Browser
from tests.runs.logs import Page, progress, rank_record, start, write
from tests.runs.test_colours import SHARED


def run_of(folder, count, late=1, spans=6):
    """A run whose rank is late from the third span on, by its step."""
    lines, waited_s = [start(time=0.0)], dict.fromkeys(range(count), 0.0)
    for i in range(1, spans + 1):
        ranks = []
        for rank in range(count):
            waited_s[rank] += 10 * (0.4 if i > 2 and rank != late else 0.0)
            record = rank_record(rank, 10.0 * i, waiting=0.1, working=0.9 - waited_s[rank] / (10 * i), exchanging=0.0)
            record["feeds"][0]["stages"]["step"]["seconds"] = 9.0 * i
            ranks.append({**record, "exchange_seconds": waited_s[rank]})
        lines.append(progress(100 * i, time=10.0 * i, seconds=10.0, ranks=ranks))
    folder.mkdir(exist_ok=True)
    return write(folder / "run.jsonl", lines)


def page_of(folder):
    return fl.report(folder).read_text("utf-8")


def test_the_numbers_of_each_rank_and_time(tmp_path):
    run_of(tmp_path, 3)
    text = page_of(tmp_path)
    shown = Page(text)
    assert {"ranks", "ranks-data", "ranks-exchanges"} <= set(shown.ids)
    ends = re.findall(r'<th scope="col">to ([^<]*)</th>', text)
    assert ends == 2 * ["10 s", "20 s", "30 s", "40 s", "50 s", "1 min"]
    map_of_exchanges = text[text.index('id="ranks-exchanges"') :]
    rows = re.findall(r"<tr><td>(\d)</td>((?:<td>\d+%</td>)+)</tr>", map_of_exchanges)
    assert [(rank, re.findall(r"\d+%", cells)) for rank, cells in rows] == [
        ("0", ["0%", "0%", "40%", "40%", "40%", "40%"]),
        ("1", ["0%"] * 6),
        ("2", ["0%", "0%", "40%", "40%", "40%", "40%"]),
    ]
    # Two rows of the picture have a stretch in the fourth shade.
    paths = re.findall(r'<path class="h(\d+)" d="([^"]*)"/>\n', map_of_exchanges)
    assert paths == [("4", "M2 0.04h4v.92h-4zM2 2.04h4v.92h-4z")]


def test_stretches_of_time_share_a_long_span_by_time(tmp_path):
    """The first span waits half of 10 s, the second a tenth of 30 s, of which 10 s are in the first stretch of 20 s."""
    lines = [start(time=0.0)]
    for seconds, waited_s in ((10.0, 5.0), (40.0, 8.0)):
        step = {"seconds": seconds - waited_s, "units": 10}
        feeds = [{"stages": {"fetch": {"waiting": waited_s}, "step": step}}]
        ranks = [{**rank_record(rank, seconds), "feeds": feeds} for rank in range(2)]
        lines.append(progress(round(seconds), seconds=10.0, ranks=ranks))
    write(tmp_path / "run.jsonl", lines)
    assert page_of(tmp_path).count("<td>30%</td><td>10%</td>") == 2


def test_the_picture_is_described_and_the_late_rank_has_words(tmp_path):
    run_of(tmp_path, 3)
    text = page_of(tmp_path)
    assert (
        "Ranks that wait for ranks, by rank and time. Least 0% of the time of rank 1, most 27% of rank 2. Highest: 40% "
        "on rank 2 after 55 s. Late: rank 1."
    ) in " ".join(text.split())
    assert "Rank 1 on host1 is late (step)." in text
    assert text.count('class="late"') == 2  # beside its row of both maps


def test_one_rank_has_no_map(tmp_path):
    run_of(tmp_path, 1)
    text = page_of(tmp_path)
    assert 'id="ranks"' not in text
    assert ".heat" not in text


def test_unknown_exchanges_have_no_map(tmp_path):
    ranks = [{**rank_record(rank, 10.0, waiting=0.2), "exchange_seconds": None} for rank in range(2)]
    write(tmp_path / "run.jsonl", [start(time=0.0), progress(100, ranks=ranks)])
    text = page_of(tmp_path)
    assert 'id="ranks-data"' in text
    assert 'id="ranks-exchanges"' not in text


def test_a_resumed_run_has_a_mark_where_it_resumed(tmp_path):
    path = run_of(tmp_path, 2, spans=3)
    with path.open("a") as log:
        log.write('{"event": "start", "samples": 300, "time": 90.0}\n')
    lines = [progress(400, time=100.0, ranks=[rank_record(rank, 10.0) for rank in range(2)])]
    write(tmp_path / "more.jsonl", lines)
    path.write_text(path.read_text() + (tmp_path / "more.jsonl").read_text())
    (tmp_path / "more.jsonl").unlink()
    text = page_of(tmp_path)
    assert text.count('<path class="mark" d="M3.00 0V2"/>') == 2  # after three of four stretches
    assert "to 40 s" in text  # the time between processes is left out


def test_a_thousand_ranks_share_rows(tmp_path):
    run_of(tmp_path, 1000, late=500, spans=2)
    text = page_of(tmp_path)
    assert "Each row is the mean of several of 1000 ranks." in text
    assert text.count('class="row"') < 2 * 64
    assert len(text) < 400_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_neighbouring_shades_differ(scheme):
    """From none to all of the time each shade stands out more from the paper."""
    colours = palettes(SHARED)[scheme]
    opacities = [float(opacity) for opacity in re.findall(r"fill-opacity: ([\d.]+)", STYLE)]
    assert len(opacities) == 10
    for colour in ("s1", "s2"):
        shades = [contrast(over(colours[colour], colours["paper"], o), colours["paper"]) for o in opacities]
        assert shades == sorted(shades)
        assert shades[-1] > 3 > 1.2 > shades[0] > 1.02


@pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_500_pixels(tmp_path, scheme):
    run_of(tmp_path / "run", 64, late=9)
    page = fl.report(tmp_path / "run")
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(page, width=500, scheme=scheme)
        assert browser.value("document.documentElement.scrollWidth") <= 500
        boxes = browser.value(
            "[...document.querySelectorAll('.heat')].map(map => [map.querySelector('svg'), ...map.querySelectorAll("
            "'.row')].map(part => part.getBoundingClientRect()).map(box => [box.top, box.bottom, box.left, box.right]))"
        )
        for picture, *labels in boxes:
            assert picture[3] - picture[2] > 250
            for label in labels:
                assert picture[0] <= (label[0] + label[1]) / 2 <= picture[1]  # beside its row
                assert label[3] <= picture[2]
            for upper, lower in itertools.pairwise(labels):
                assert upper[1] <= lower[1] - 10  # labels do not cover each other
        assert browser.console == []
    finally:
        browser.close()
