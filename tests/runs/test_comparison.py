"""Several runs on one page: curves over each other, what they ended with, what differs."""

from __future__ import annotations

import pytest

import feedline as fl
from tests.runs.logs import Page, progress, start, write

STATE = {"order": "feedline-1", "seed": "0000000000000001", "shuffle": "all", "corpus": "c0ffee"}


def run(folder, name, losses=(3.0, 2.0, 1.0), seed=1, state=None, **about):
    place = folder / name
    place.mkdir(exist_ok=True)
    feed = {"step": 0, "size": 32, "state": {**STATE, "seed": f"{seed:016x}", **(state or {})}}
    lines = [start(feed=feed, settings={"lr": "0.1"}, **about)]
    lines += [progress(100 * i, loss=loss, metric=loss / 10) for i, loss in enumerate(losses, 1)]
    lines += [{"event": "validation", "samples": 300, "loss": losses[-1] + 0.5, "metric": 0.5, "counted": 10}]
    write(place / "run.jsonl", lines)
    return place


def compared(*runs, **options):
    return Page(fl.report(runs, **options).read_text("utf-8"))


def test_curves_lie_over_each_other(tmp_path):
    places = [run(tmp_path, name, [start - i for i in range(3)]) for name, start in (("a", 3.0), ("b", 4.0))]
    path = fl.report(places)
    assert path == tmp_path / "comparison.html"
    page = Page(path.read_text("utf-8"))
    table = page.columns("curve-0")
    assert table == {"label samples": ["100", "200", "300"], "a": ["3", "2", "1"], "b": ["4", "3", "2"]}
    assert "Lowest validation loss: 1.5, of a." in page.text
    assert "Only" not in page.text
    assert page.links == [link for link in page.links if link.startswith("#")]


def test_runs_of_different_length_and_places(tmp_path):
    page = compared(run(tmp_path, "a", [3.0, 2.0, 1.0]), run(tmp_path, "b", [4.0, 3.0, 2.0, 1.0]))
    assert page.columns("curve-0")["a"] == ["3", "2", "1", ""]


def test_what_differs_and_what_does_not(tmp_path):
    a = run(tmp_path, "a", seed=1, machine="one", commit="abc")
    b = run(tmp_path, "b", seed=2, machine="two", commit="abc", state={"corpus": "other"})
    text = fl.report([a, b], tmp_path / "page.html").read_text("utf-8")
    differs, same = text[text.index('id="differences"') : text.index('id="same"')], text[text.index('id="same"') :]
    for name in ("seed of the order", "digest of the corpus", "machine"):
        assert f"<td>{name}</td>" in differs
        assert name not in same
    for name in ("commit", "order", "lr", "model"):
        assert f'<th scope="row">{name}</th>' in same
    assert "They were trained on different data." in text


def test_equal_runs_are_called_equal_and_others_part_somewhere(tmp_path):
    a, b = run(tmp_path, "a", [3.0, 2.0, 1.0]), run(tmp_path, "b", [3.0, 2.0, 1.0])
    c, d = run(tmp_path, "c", [3.0, 2.0, 1.5]), run(tmp_path, "d", [9.0, 8.0, 7.0])
    assert "a and b have equal training losses, to the last digit, at all 3 places" in compared(a, b).text
    assert "Nothing that the logs tell." in compared(a, b).text
    assert "a and c have equal training losses before 300 label samples" in compared(a, c).text
    assert "equal training losses" not in compared(a, d).text


def test_names_tell_runs_apart(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    page = compared(run(tmp_path / "x", "run"), run(tmp_path / "y", "run"))
    assert list(page.columns("curve-0"))[1:] == ["x/run", "y/run"]


def test_names_from_data_are_text(tmp_path):
    evil = "<script>alert(1)</script>"
    a = run(tmp_path, "a", model=evil, command=evil, versions={evil: evil})
    page = compared(a, run(tmp_path, "b&<b>"))
    assert page.tags.isdisjoint({"b&"})
    assert len(page.scripts) == 1
    assert evil in page.text


def test_how_many(tmp_path):
    places = [run(tmp_path, f"r{i}") for i in range(7)]
    assert list(compared(*places[:6]).columns("curve-0"))[1:] == [f"r{i}" for i in range(6)]
    for some in (places, places[:1], []):
        with pytest.raises(ValueError, match=f"expected 2 to 6 runs to compare, got {len(some)}"):
            fl.report(some)
    with pytest.raises(ValueError, match="refresh_s=None for several runs"):
        fl.report(places[:2], refresh_s=5)
    with pytest.raises(ValueError, match="another file than the log"):
        fl.report(places[:2], places[1] / "run.jsonl")
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        fl.report([places[0], tmp_path / "none"])


def test_logs_of_older_versions(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        line = {"event": "progress", "samples": 10, "loss": 1.0, "metric": None, "counted": 10, "minibatches": 1}
        write(tmp_path / name / "run.jsonl", [{**line, "samples": n, "seconds": 1.0} for n in (10, 20)])
    assert "The logs do not say what the runs were made with." in compared(tmp_path / "a", tmp_path / "b").text


def events(folder, scalars):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert torch
    from feedline.train.report.tensorboard import event_writer

    writer = event_writer(folder)
    for tag, values in scalars.items():
        for step, value in values:
            writer.add_scalar(tag, value, step)
    writer.close()
    return folder


def test_event_files_of_tensorboard(tmp_path):
    """Ours are compared with logs; those of other programs keep their tags and steps."""
    log = run(tmp_path, "log", [3.0, 2.0, 1.0])
    ours = events(
        tmp_path / "ours",
        {"summary/avg_loss": [(100, 4.0), (200, 3.0)], "feed/waiting": [(100, 0.25), (200, 0.5)]},
    )
    other = events(tmp_path / "other", {"train/acc": [(1, 0.5), (2, float("nan")), (3, 0.75)]})
    page = compared(log, ours, other)
    assert page.columns("curve-0") == {
        "label samples": ["100", "200", "300"],
        "log": ["3", "2", "1"],
        "ours": ["4", "3", ""],
    }
    charts = [page.columns(chart) for chart in page.tables]
    assert {"label samples": ["100", "200", "300"], "log": ["25", "25", "25"], "ours": ["25", "50", ""]} in charts
    assert {"steps": ["1", "3"], "other": ["0.5", "0.75"]} in charts
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "events.out.tfevents.1").write_bytes(b"")
    with pytest.raises(ValueError, match="expected event files with scalars"):
        fl.report([log, empty])


def test_how_often_a_run_resumed_is_told_in_words(tmp_path):
    paths = []
    for n in range(3):
        (tmp_path / f"{n}").mkdir()
        lines = [
            start(),
            progress(100),
            *[line for k in range(n) for line in (start(100 + 100 * k), progress(200 + 100 * k))],
        ]
        paths.append(write(tmp_path / f"{n}" / "run.jsonl", lines))
    page = compared(*[path.parent for path in paths])
    assert "resumedneveronce2 times" in page.text.replace("\n", "")


def test_who_is_faster_is_told_by_the_figures_of_the_table(tmp_path):
    """Many slow short spans and a long fast one: the speed is that of the whole time."""
    for name, seconds in (("a", [8.0, 1.0, 1.0]), ("b", [4.0, 4.0, 4.0])):
        (tmp_path / name).mkdir()
        lines = [progress(100 * i, seconds=s) for i, s in enumerate(seconds, 1)]
        write(tmp_path / name / "run.jsonl", [start(), *lines])
    page = compared(tmp_path / "a", tmp_path / "b")
    assert "label samples a second3025" in page.text.replace("\n", "")
    assert "a is 1.2 times as fast as b." in page.text
