"""A page shows the content of the log, once, safely, whatever it contains."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.runs.charts import MAX_COLUMNS
from feedline.runs.history import read_history
from tests.effort import examples
from tests.runs.logs import Page, progress, start, write

EVIL = "<script>alert('x')</script>\"&'<img src=x onerror=alert(1)>"


def page_of(path):
    """Make the page and take it apart."""
    return Page(fl.report(path).read_text("utf-8"))


EDGES = [0.0, 5e-324, 1.0, 1.0000000000000002, -1.0, 1.7e308, -1.7e308]
finite = st.none() | st.sampled_from(EDGES) | st.floats(-10, 10) | st.floats(allow_nan=False, allow_infinity=False)
spans = st.lists(st.tuples(st.integers(1, 1000), finite, finite, st.floats(0.001, 1e4)), min_size=1, max_size=40)


@given(spans)
@settings(max_examples=examples(75), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tables_are_the_log(tmp_path, given_spans):
    """The table of each chart contains exactly the numbers of the log."""
    samples, lines = 0, [start()]
    for counted, loss, metric, seconds in given_spans:
        samples += counted
        lines.append(progress(samples, loss=loss, metric=metric, counted=counted, seconds=seconds))
    page = page_of(write(tmp_path / "run.jsonl", lines))

    def shown(name, of):
        return [(str(line["samples"]), f"{of(line):.6g}") for line in lines[1:] if of(line) is not None]

    for name, of in {
        "loss": lambda line: line["loss"],
        "metric": lambda line: line["metric"],
        "speed": lambda line: line["counted"] / line["seconds"],
        "waiting": lambda line: 100 * line["waiting"],
        "padding": lambda line: 100 * (1 - 90 / 120),
        "mixing": lambda line: 100 * 600 / 30 / (100 / 3),
    }.items():
        expected = shown(name, of)
        assert (name in page.tables) == bool(expected)
        if expected:
            # A mean of noisy values comes before them.
            at, *columns = [found for title, found in page.columns(name).items() if "mean of" not in title]
            assert list(zip(at, columns[0], strict=True)) == expected
    assert page.columns("lengths") == {
        "samples": ["1", "2-3", "4-7"],
        "words": [str(len(given_spans) * count) for count in (10, 20, 5)],
    }


def test_validations_and_updates_share_the_chart(tmp_path):
    """Each place on the axis is one row."""
    more = [
        {"event": "update", "samples": 50, "loss": 0.75, "metric": 0.5, "counted": 50},
        progress(100, loss=0.625),
        {"event": "validation", "samples": 100, "number": 0, "loss": 0.25, "metric": 0.125, "counted": 10},
        {"event": "test", "samples": 100, "number": 0, "loss": 0.375, "metric": 0.25, "counted": 10},
    ]
    page = page_of(write(tmp_path / "run.jsonl", [start(), *more]))
    assert "0.375test loss, metric 0.25" in page.text  # a number, not a point
    found = page.columns("loss")
    assert found == {
        "label samples": ["50", "100"],
        "training": ["", "0.625"],
        "each update": ["0.75", ""],
        "validation": ["", "0.25"],
    }


def test_a_run_that_went_on_is_counted_once(tmp_path):
    """After the resumed position, the second process's lines count. A torn line is reported, not shown."""
    first = [start(), *(progress(at, loss=9.0, seconds=1.0) for at in (100, 200, 310))]
    second = [start(200), progress(300, loss=3.0, seconds=1.0), progress(400, loss=4.0, seconds=1.0)]
    path = write(tmp_path / "run.jsonl", first, torn='{"event": "progr\n')
    path.write_text(path.read_text() + "".join(json.dumps(line) + "\n" for line in second) + '{"event"')
    history = read_history(path)
    assert (history.restarts, history.torn, history.ended) == ([200], 2, None)
    assert history.seconds == 4.0
    page = page_of(path)
    assert page.columns("loss")["training"] == ["9", "9", "3", "4"]
    assert page.columns("lengths")["words"] == ["40", "80", "20"]
    for told in ("resumed once", "200 label samples", "2 lines of the log could not be read", "The log has no end"):
        assert told in page.text


def test_a_run_that_ended_reports_nothing(tmp_path):
    """Nothing is found where nothing is."""
    calm = progress(100, waiting=0.0, saving=0.0)
    calm["fed"]["streams"]["words"]["padded"] = 95
    calm["fed"]["jumps"] = 1000
    end = {"event": "end", "samples": 100, "sweeps": 1, "interrupted": False}
    page = page_of(write(tmp_path / "run.jsonl", [start(), calm, end]))
    assert "Nothing stands out." in page.text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"waiting": 0.5}, "50% of the time was spent waiting for data"),
        ({"saving": 0.5}, "50% of the time went into checkpoints"),
        ({"loss": None}, "The loss is NaN or ∞ from the span that ends at 100 label samples on"),
        ({"fed": {"jumps": 100}}, "Sequences delivered one after the other are 10% as far apart"),
        ({"fed": {"streams": {"words": {"samples": 30, "padded": 120, "lengths": [0, 3, 9]}}}}, "75% of the rows"),
        ({"stats": {"skipped": 3}}, "3 sequences were unreadable"),
    ],
)
def test_remarkable_results_are_named(tmp_path, change, told):
    """Each of the things to look at first."""
    line = progress(100, waiting=0.0, saving=0.0)
    line["fed"]["jumps"] = 1000
    for name, value in change.items():
        line[name] = {**line[name], **value} if isinstance(value, dict) else value
    assert told in page_of(write(tmp_path / "run.jsonl", [start(), line])).text


def uneven(balance, now, balanced):
    """Return statistics of a source whose ranks have uneven squares of lengths."""
    figures = {"samples": {"samples": 1.1, "squares": now}, "squares": {"samples": 1.3, "squares": balanced}}
    return {"balance": balance, "unevenness": figures}


@pytest.mark.parametrize(
    ("spans", "told"),
    [
        ([("samples", 1.8, 1.0), ("samples", 2.0, 1.2)], True),  # means of 1.9 and 1.1
        ([("samples", 1.1, 1.0), ("samples", 1.15, 1.0)], False),  # hardly uneven
        ([("samples", 3.0, 2.9)], False),  # one sequence is most of a minibatch
        ([("squares", 1.8, 1.0)], False),  # balanced already
    ],
)
def test_uneven_ranks_are_named(tmp_path, spans, told):
    """With what to write, from the means of the log's figures, which a table shows."""
    lines = [progress(100 * i, stats=uneven(*span)) for i, span in enumerate(spans, 1)]
    page = page_of(write(tmp_path / "run.jsonl", [start(), *lines]))
    sentence = (
        'had 1.9 times the mean, and all others waited for it. partition=fl.Partition(..., balance="squares") would '
        "make that 1.1 times."
    )
    assert (sentence in page.text) == told
    assert ("balance=" in page.text and "fl.Partition(..., balance" in page.text) == told
    now, balanced = (np.mean([span[i] for span in spans]) for i in (1, 2))
    used = spans[0][0]
    names = [f"{name} (in this run)" if name == used else name for name in ("samples", "squares")]
    assert f"{names[0]}1.100{now:.3f}\n{names[1]}1.300{balanced:.3f}" in page.text


def test_figures_of_ranks_are_numbers(tmp_path):
    for stats, field in (({"balance": 3}, "balance"), (uneven("samples", "many", 1.0), "unevenness.samples.squares")):
        path = write(tmp_path / "run.jsonl", [start(), progress(100, stats=stats)])
        with pytest.raises(fl.DataError, match=rf"stats\.{field}"):
            fl.report(path)


def test_corpora_of_a_mixture(tmp_path):
    """Each corpus has its delivered and its declared share, by the last span's figures, which are totals."""
    lines = [start()]
    for at, delivered in ((100, 0.5), (200, 0.625)):
        given = {"web": {"sequences": at // 2, "delivered": delivered, "declared": 0.75}}
        lines.append(progress(at, stats={"held_bytes": 0, "skipped": 0, "corpora": given}))
    page = page_of(write(tmp_path / "run.jsonl", lines))
    assert "web10062.500%75.000%" in page.text
    assert "50.000%" not in page.text
    with pytest.raises(fl.DataError, match=r"stats\.corpora\.web\.sequences"):
        lines[1]["stats"]["corpora"]["web"]["sequences"] = "many"
        fl.report(write(tmp_path / "run.jsonl", lines))


def test_names_from_data_are_text(tmp_path):
    """Names of streams, models, learners, files and reasons make no tag, no attribute, no script."""
    line = progress(100)
    line["fed"]["streams"] = {EVIL: line["fed"]["streams"]["words"]}
    lines = [
        start(model=EVIL, learners=[EVIL], streams={EVIL: EVIL}),
        line,
        {"event": "checkpoint", "samples": 100, "path": EVIL},
        {"event": "validation", "samples": 100, "number": 0, "loss": 0.25, "metric": 0.125, "counted": 10},
    ]
    folder = tmp_path / "<b>run" if (tmp_path / "<b>run").mkdir() is None else None
    bad = {"sequence": 3, "path": EVIL, "line": 4, "byte": None, "stream": EVIL, "reason": EVIL}
    (folder / "quarantine-rank0.jsonl").write_text(json.dumps(bad) + "\n")
    (folder / "network.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg">{EVIL}</svg>')
    write(folder / "run.jsonl", lines)
    page = page_of(folder)
    assert page.text.count(EVIL) >= 7
    assert len(page.scripts) == 1
    assert "alert" not in page.scripts[0]
    assert page.handlers == []
    assert "b" in page.tags  # the tiles' own
    assert "<b>run" in page.text
    assert [link for link in page.links if not link.startswith("#")] == [
        link for link in page.links if link.startswith("data:image/svg+xml;base64,")
    ]
    assert sum(link.startswith("data:") for link in page.links) == 1


def test_nothing_is_loaded(tmp_path):
    """The page has no address, and a policy that forbids loading. The only script is the one in the policy."""
    text = fl.report(write(tmp_path / "run.jsonl", [start(), progress(100)])).read_text("utf-8")
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"^ *// .*$", "", text, flags=re.MULTILINE))
    assert "default-src 'none'" in text
    assert re.search(r"script-src 'sha256-[\w+/]{43}='", text)


def test_a_million_lines_make_a_small_page(tmp_path):
    """All of a long log is read, little is shown, and the page has a note about it."""
    path = tmp_path / "run.jsonl"
    update = '{"event": "update", "samples": %d, "sweeps": 0, "loss": %.3f, "metric": null, "counted": 1}\n'
    with path.open("w") as file:
        file.write(json.dumps(start()) + "\n")
        for i in range(1, 100_001):
            file.write(update % (i, 9.5 if i == 70_001 else 1 + i % 10 / 100))
    made = fl.report(path)
    assert made.stat().st_size < 100_000
    found = Page(made.read_text("utf-8"))
    assert "100,000 rows" in found.text
    rows = dict(zip(found.columns("loss")["label samples"], found.columns("loss")["each update"], strict=True))
    assert (rows["1"], rows["70001"], rows["100000"]) == ("1.01", "9.5", "1")


def test_quarantined_sequences_are_listed_once(tmp_path):
    """Whatever number of processes met them, and their count where there are many."""
    line = {"path": "a.ctf", "line": 4, "byte": 5, "stream": "x", "reason": "bad"}
    for rank in range(2):
        text = "".join(json.dumps({"sequence": i, **line}) + "\n" for i in range(60 + rank))
        (tmp_path / f"quarantine-rank{rank}.jsonl").write_text(text + '{"seq')
    write(tmp_path / "run.jsonl", [start(), progress(100)])
    text = page_of(tmp_path).text
    assert "61 different sequences are listed in quarantine-rank0.jsonl, quarantine-rank1.jsonl" in text
    assert "the first 50" in text
    for rank in range(2):
        text = "".join(json.dumps({"sequence": i, **line}) + "\n" for i in range(3))
        (tmp_path / f"quarantine-rank{rank}.jsonl").write_text(text)
    assert page_of(tmp_path).text.count("a.ctf") == 3


def test_checkpoints_show_whether_they_are_kept(tmp_path):
    """Where they were written, or in a folder that was moved."""
    (tmp_path / "checkpoints" / "checkpoint-000002-200").mkdir(parents=True)
    saved = [
        {"event": "checkpoint", "samples": at, "path": f"/elsewhere/checkpoints/checkpoint-{i:06d}-{at}"}
        for i, at in ((1, 100), (2, 200))
    ]
    text = page_of(write(tmp_path / "run.jsonl", [start(), progress(200), *saved])).text
    assert re.search(r"yes\s*/elsewhere/checkpoints/checkpoint-000002-200", text)
    assert re.search(r"no\s*/elsewhere/checkpoints/checkpoint-000001-100", text)


def test_other_files_than_runs_are_reported(tmp_path):
    """No folder, no log, several logs, another file."""
    with pytest.raises(FileNotFoundError, match="does not exist"):
        fl.report(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"expected a log in .*JsonLines"):
        fl.report(tmp_path)
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(fl.DataError, match="0 lines without one"):
        fl.report(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"loss": 3}\n')
    with pytest.raises(fl.DataError, match=r"(?s)expected an event.*a\.jsonl:1"):
        fl.report(tmp_path)
    (tmp_path / "b.jsonl").write_text("")
    with pytest.raises(fl.DataError, match=r"got a\.jsonl, b\.jsonl"):
        fl.report(tmp_path)


def test_it_goes_to_the_given_place(tmp_path):
    """The path returned is the page's."""
    log = write(tmp_path / "other.jsonl", [start(), progress(100)])
    assert fl.report(tmp_path) == tmp_path / "report.html"
    assert fl.report(log, tmp_path / "page.html").read_text("utf-8") == (tmp_path / "report.html").read_text("utf-8")


def test_transforms_are_reported_by_span(tmp_path):
    """Statistics count from a process's start, over its spans and not beyond."""
    lines = [start()]
    for samples, seconds in ((100, 1.0), (200, 4.0)):
        lines.append(progress(samples, seconds=2.0, waiting=0.5, stats={"transform_seconds": seconds}))
    lines += [start(200), progress(300, seconds=2.0, waiting=0.5, stats={"transform_seconds": 2.5})]
    page = page_of(write(tmp_path / "run.jsonl", lines))
    assert page.columns("transforming")["busy"] == ["0.5", "1.5", "1.25"]
    assert "took 6.5 s of threads, 108% of the wall time: 1.1 threads" in page.text
    assert "1.1threads busy with transforms" in page.text
    assert "Transforms such as decoding kept 1.1 threads busy" in page.text


def test_without_transforms_none_are_mentioned(tmp_path):
    for stats in ({"transform_seconds": 0.0}, {}):
        page = page_of(write(tmp_path / "run.jsonl", [start(), progress(100, stats=stats)]))
        assert "transforming" not in page.tables
        assert "decoding" not in page.text.lower()


def test_lines_of_older_logs(tmp_path):
    """Only fields that were not written then are missing."""
    old = progress(100)
    for name in ("fed", "stats", "evaluating", "saving"):
        old.pop(name)
    bare = {"event": "start", "samples": 0, "sweeps": 0}
    page = page_of(write(tmp_path / "run.jsonl", [bare, old]))
    assert set(page.tables) == {"loss", "speed", "waiting"}
    assert "The learning rate is 0.1 throughout." in page.text


def places(value, path=()):
    """The path of every field in JSON, lists' elements too."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*path, key)
        yield from places(part, (*path, key))


WRONG = [None, -1, 1e308, -1e308, float("nan"), float("inf"), 5e-324, 10**400, 2**63, True]
wrong = st.sampled_from([*WRONG, "x", "", "\ud800", [], {}, [1], [None], {"a": 1}])
WHOLE = [
    start(time=1.5, workers=1, streams={"words": "Stream"}),
    progress(100),
    {"event": "validation", "samples": 100, "number": 0, "loss": 0.25, "metric": 0.125, "counted": 10},
    {"event": "checkpoint", "samples": 100, "path": "checkpoint-1", "time": 2.5},
    {
        "event": "end",
        "samples": 100,
        "sweeps": 1,
        "time": 3.5,
        "seconds_by_part": {"feeding": 1.0},
        "figures": {"a": 1},
    },
]
FIELDS = [(i, path) for i, line in enumerate(WHOLE) for path in places(line)]


@given(st.sampled_from(FIELDS), wrong)
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_field_may_be_anything(tmp_path, field, value):
    """A page, or a DataError that names the line, whatever a log contains."""
    lines = json.loads(json.dumps(WHOLE))
    number, (*way, last) = field
    inner = lines[number]
    for key in way:
        inner = inner[key]
    inner[last] = value
    path = write(tmp_path / "run.jsonl", lines)
    try:
        page_of(path)
    except fl.DataError as error:
        assert error.path == str(path)  # noqa: PT017
        assert error.line in (None, number + 1)  # noqa: PT017


def test_a_field_that_is_wrong_is_named(tmp_path):
    """The error has expected and got."""
    line = progress(100)
    line["fed"]["streams"]["words"]["lengths"][1] = "many"
    with pytest.raises(fl.DataError, match=r"(?s)fed\.streams\.words\.lengths: expected a whole.*'many'.*run\.jsonl:2"):
        fl.report(write(tmp_path / "run.jsonl", [start(), line]))


def test_names_that_are_no_characters(tmp_path):
    """Bytes of file names that are not UTF-8 appear as lone surrogates, in logs, quarantine files and folders."""
    bad = {"sequence": 3, "path": "a\udcff.ctf", "line": 4, "byte": None, "stream": "x", "reason": "bad"}
    (tmp_path / "quarantine.jsonl").write_text(json.dumps(bad) + "\n")
    write(tmp_path / "run.jsonl", [start(), progress(100)])
    assert "a\\udcff.ctf" in page_of(tmp_path).text


def test_the_log_is_not_written_over(tmp_path):
    """Under none of its names."""
    path = write(tmp_path / "run.jsonl", [start(), progress(100)])
    before = path.read_bytes()
    (tmp_path / "link").symlink_to(path)
    for output in (path, tmp_path / "link"):
        with pytest.raises(ValueError, match="another file than the log"):
            fl.report(path, output)
    assert path.read_bytes() == before


def test_a_page_may_load_itself_again(tmp_path):
    path = write(tmp_path / "run.jsonl", [start(), progress(100)])
    text = fl.report(path, refresh_s=2.5).read_text("utf-8")
    assert '<noscript><meta http-equiv="refresh" content="3"></noscript>' in text
    assert 'data-seconds="2.5"' in text
    Page(text)
    assert 'http-equiv="refresh"' not in fl.report(path).read_text("utf-8")
    write(path, [start(), progress(100), {"event": "end", "samples": 100}])
    assert 'http-equiv="refresh"' not in fl.report(path, refresh_s=2.5).read_text("utf-8")
    for wrong in (0, 0.5, -1, float("nan")):
        with pytest.raises(ValueError, match="refresh_s of at least 1 second"):
            fl.report(path, refresh_s=wrong)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["report.html", "run.jsonl"]


def test_rates_that_change_are_drawn(tmp_path):
    lines = [progress(100, rates=[0.1, 1.0]), progress(200, rates=[0.05, 1.0])]
    page = page_of(write(tmp_path / "run.jsonl", [start(), *lines]))
    assert page.columns("rate")["1: Adam"] == ["0.1", "0.05"]
    assert "throughout" not in page.text
    lines = [progress(100, rates=[0.1, 1.0]), progress(200, rates=[0.1, 1.0])]
    page = page_of(write(tmp_path / "run.jsonl", [start(), *lines]))
    assert "rate" not in page.tables
    assert "The learning rate is 0.1 of 1: Adam, 1 of 2 throughout." in page.text


def test_noisy_curves_have_a_moving_mean(tmp_path):
    noisy = [progress(100 * i, loss=1 / i + 0.2 * (i % 2), seconds=1 + i % 2) for i in range(1, 101)]
    page = page_of(write(tmp_path / "run.jsonl", [start(), *noisy]))
    table = page.columns("loss")
    assert list(table)[1:] == ["training, mean of 5 spans", "training"]
    losses = [float(n) for n in table["training"]]
    assert float(table["training, mean of 5 spans"][50]) == pytest.approx(sum(losses[48:53]) / 5, rel=1e-4)
    assert float(table["training, mean of 5 spans"][0]) == losses[0]
    assert float(table["training, mean of 5 spans"][-1]) == pytest.approx(sum(losses[-3:]) / 3, rel=1e-4)
    assert "throughput, mean of 5 spans" in page.columns("speed")
    # A mean that lagged would make a straight line, and a bend, noisy.
    line = [progress(100 * i, loss=3 - i / 50) for i in range(1, 101)]
    assert list(page_of(write(tmp_path / "run.jsonl", [start(), *line])).columns("loss"))[1:] == ["training"]
    smooth = [progress(100 * i, loss=1 / i) for i in range(1, 101)]
    assert list(page_of(write(tmp_path / "run.jsonl", [start(), *smooth])).columns("loss"))[1:] == ["training"]


def test_names_of_loss_and_metric_are_shown(tmp_path):
    page = page_of(write(tmp_path / "run.jsonl", [start(metric_name="error_rate"), progress(100, metric=0.5)]))
    assert "Metric: error_rate" in page.text


def test_a_long_log_notes_once_that_rows_are_left_out(tmp_path):
    lines = [progress(100 * i, loss=1 / i) for i in range(1, 1001)]
    page = page_of(write(tmp_path / "run.jsonl", [start(), *lines]))
    assert page.text.count("of each stretch") == 1
    assert "of 1,000 rows" in page.text


def test_where_bytes_came_from(tmp_path):
    """Statistics belong to a process. A resumed one begins at 0 again."""

    def line(samples, **stats):
        return progress(samples, seconds=10.0, stats={"held_bytes": 0, "skipped": 0, **stats})

    lines = [
        start(),
        line(100, asked_bytes=4_000_000, disk_bytes=3_000_000, read_seconds=5.0, fetched_bytes=1000, cached_bytes=0),
        line(
            200, asked_bytes=20_000_000, disk_bytes=5_000_000, read_seconds=9.0, fetched_bytes=1000, cached_bytes=2000
        ),
        start(200),
        line(300, asked_bytes=1_000_000, disk_bytes=2_000_000, read_seconds=6.0, fetched_bytes=0, cached_bytes=1000),
    ]
    page = page_of(write(tmp_path / "run.jsonl", lines))
    text = page.text
    charts = {key: [row[1] for row in page.tables[key][1:]] for key in ("disk", "pages", "hits", "reading")}
    assert charts.pop("pages") == ["25", "87.5", "0"]
    assert charts == {"disk": ["0.3", "0.2", "0.2"], "hits": ["0", "100", "100"], "reading": ["0.5", "0.4", "0.6"]}
    assert "What the page cache did not hold, per second; 0 where it held everything." in text
    assert "7 MB were fetched from the disk" in text
    assert "Of 21 MB that were asked for, 67% came out of the page cache." in text
    assert "more than was asked for" not in text
    assert "4 kB of chunks came from object stores, 75% of them out of the cache." in text
    assert "kept 0.5 threads busy, 15 s in all" in text
    other = page_of(write(tmp_path / "run.jsonl", [start(), line(100, asked_bytes=5, disk_bytes=0, read_seconds=0.0)]))
    assert "fetched from the disk" not in other.text
    assert not {"disk", "pages", "hits", "reading"} & set(other.tables)
    idle = page_of(write(tmp_path / "run.jsonl", [start(), line(100, read_seconds=0.01)]))
    assert "threads busy" not in idle.text
    assert "reading" not in idle.tables
    small = page_of(write(tmp_path / "run.jsonl", [start(), line(100, asked_bytes=1000, disk_bytes=4096)]))
    assert "Of 1 kB that were asked for, 0% came out of the page cache. A disk gives whole pages" in small.text


def test_all_lines_of_a_chart_differ_in_more_than_colour():
    """Also the thin line below its mean."""
    style = (files("feedline.runs") / "page.css").read_text("utf-8")
    dashes = dict(re.findall(r"\.line\.(s\d), \.s\d \.line \{ stroke-dasharray: ([\d. ]+) \}", style))
    assert len(set(dashes.values())) == len(dashes) == MAX_COLUMNS - 1  # the first is solid
    assert "dasharray" not in re.search(r"\.line\.faint.*?\}", style)[0]


def test_wall_time_ends_with_the_run(tmp_path):
    """A last validation, its checkpoint and the test come after the last span: they count, once, in every process."""
    from feedline.runs.history import read_history

    average = {"loss": 0.5, "metric": None, "counted": 10}
    lines = [
        start(time=0.0),
        progress(100, seconds=10.0, waiting=0.0, saving=0.0, time=10.0),
        {"event": "validation", "samples": 100, "time": 16.0, **average},
        {"event": "checkpoint", "samples": 100, "time": 17.0, "path": "c"},
        {"event": "test", "samples": 100, "time": 20.0, **average},
        {"event": "end", "samples": 100, "time": 20.0, "interrupted": False},
    ]
    path = write(tmp_path / "run.jsonl", lines)
    page = page_of(path)
    assert "Wall time: 20 s" in page.text
    assert "evaluating: 9 s, 45.0%" in page.text
    assert "saving: 1 s" in page.text
    # More sweeps: the next span has the checkpoint's content, but not the test after it.
    more = [
        start(100, time=1000.0),
        progress(200, seconds=17.0, waiting=0.0, saving=0.0, time=1010.0),
        {"event": "end", "samples": 250, "time": 1015.0, "interrupted": True},
    ]
    history = read_history(write(path, lines + more))
    assert history.after == {"evaluating": 3.0, "training": 5.0}
    assert history.seconds == 10 + 17 + 3 + 5
    assert history.counted == 250


def test_a_loss_that_became_nan_is_shown_as_such(tmp_path):
    """In the tile, in short, and on the axis, which ends where the run does."""
    lines = [progress(100 * i, loss=1.5 if i < 4 else None) for i in range(1, 9)]
    page = page_of(write(tmp_path / "run.jsonl", [start(), *lines]))
    assert "NaN or ∞training loss, last span: 1.5 at 300, the last finite one" in page.text
    assert "The loss is NaN or ∞ from the span that ends at 400 label samples onwards: a smaller" in page.text
    assert "In training it is NaN or ∞ from 400 label samples on." in page.text
    text = (tmp_path / "report.html").read_text("utf-8")
    assert text[text.index('id="loss"') :].index(">800</span>") > 0  # a tick
    again = [*lines, progress(900, loss=1.0)]
    page = page_of(write(tmp_path / "run.jsonl", [start(), *again]))
    assert "1training loss, last span" in page.text
    assert "not a finite number in 5 of 9 spans, first at 400" in page.text


def test_order_and_settings_of_a_run_are_described_in_words(tmp_path):
    state = {"order": "feedline-2", "seed": "000000000000000f", "shuffle": "all", "corpus": "c0ffee"}
    settings = {
        "minibatch size": "[(22153, 4096), 6144], epoch_size=1",
        "variance": "0.9999986111120757, reference=1",
        "note": "[1, 2",
    }
    about = start(feed={"state": state}, settings=settings, metric_name="wrong", time=0.0)
    page = page_of(write(tmp_path / "run.jsonl", [about, progress(100, metric=0.5)]))
    rows = page.text.replace("\n", "")
    for told in (
        "orderfeedline-2",
        "seed of the order15",
        "shuffleall",
        "digest of the corpusc0ffee",
        "minibatch size4096 for 22,153 label samples, then 6144",
        "variance0.999998611",
        "note[1, 2",
        "wrong0",
    ):
        assert told in rows
    assert "last process" not in page.text
    assert "variance0.999998611," not in rows
    mixed = progress(100, stats={"corpora": {"a": {"sequences": 1, "delivered": 1.0, "declared": 1.0}}})
    assert "0 sweeps" not in page_of(write(tmp_path / "run.jsonl", [start(), mixed])).text
    assert "0 sweeps" in page_of(write(tmp_path / "run.jsonl", [start(), progress(100)])).text
