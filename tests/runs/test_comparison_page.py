"""Several runs on one page: superimposed curves, final results, differences."""

from __future__ import annotations

import pytest

import feedline as fl
from feedline.runs.compare_runs import order_facts
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


def test_curves_are_superimposed(tmp_path):
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
    parted = "a and c have equal training losses, to the last digit, before 300 label samples"
    assert f"{parted}; from there on they differ by at most 0.5." in compared(a, c).text
    assert "Lowest validation loss: 1.5, of a and b, equal." in compared(a, b).text
    near = run(tmp_path, "near", [3.0, 2.0, 1.000001])
    page = compared(a, near)
    assert "they differ by at most 1e-06, no more than rounding makes." in page.text
    assert "Lowest validation loss: 1.5, of a and near, about equal." in page.text
    other = run(tmp_path, "other", [3.000001, 2.0, 1.000001])
    assert "about equal training losses: they differ by at most 1e-06." in compared(a, other).text
    assert "equal training losses" not in compared(a, d).text


def test_names_distinguish_runs(tmp_path):
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
    """Our event files are compared with logs. Other programs' files keep their tags and steps."""
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
    assert "other: train/acc is NaN or ∞ at 1 place, first at 2 steps." in page.text
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "events.out.tfevents.1").write_bytes(b"")
    with pytest.raises(ValueError, match="expected event files with scalars"):
        fl.report([log, empty])


def test_the_number_of_resumes_is_described_in_words(tmp_path):
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


def test_the_faster_run_has_the_better_figures_in_the_table(tmp_path):
    """With many slow short spans and a long fast one, the speed is measured over the whole time."""
    for name, seconds in (("a", [8.0, 1.0, 1.0]), ("b", [4.0, 4.0, 4.0])):
        (tmp_path / name).mkdir()
        lines = [progress(100 * i, seconds=s) for i, s in enumerate(seconds, 1)]
        write(tmp_path / name / "run.jsonl", [start(), *lines])
    page = compared(tmp_path / "a", tmp_path / "b")
    assert "label samples a second3025" in page.text.replace("\n", "")
    assert "a is 1.2 times as fast as b, over its whole wall time." in page.text


def test_results_of_other_programs(tmp_path):
    """Last and best of every tag, both extremes where the direction is unknown. Differences are listed."""
    p = events(tmp_path / "p", {"Loss/train": [(1, 2.0), (2, 1.0)], "acc": [(1, 0.5), (2, 0.9)], "lr": [(1, 0.1)]})
    q = events(tmp_path / "q", {"Loss/train": [(1, 2.0), (2, 1.5)], "acc": [(1, 0.8), (2, 0.7)], "lr": [(1, 0.1)]})
    page = compared(p, q)
    rows = page.text.replace("\n", "")
    for told in (
        "Loss/train, lowest1 at 21.5 at 2",
        "Loss/train, last11.5",
        "acc, lowest0.5 at 10.7 at 2",
        "acc, highest0.9 at 20.8 at 1",
        "acc, last0.90.7",
        "Lowest Loss/train: 1, of p.",
        "Acc ends at 0.9 in p, 0.7 in q.",
    ):
        assert told in rows
    assert "Loss/train, highest" not in rows
    assert "Lr ends" not in rows


def test_metrics_have_their_names(tmp_path):
    """Metrics in event files have no names. With logs that agree, they get the logs' names."""
    log, second = (run(tmp_path, name, metric_name="wrong") for name in ("log", "second"))
    ours = events(
        tmp_path / "ours",
        {"summary/avg_loss": [(100, 4.0), (200, 3.0)], "validation/avg_metric": [(100, 0.25), (300, 0.125)]},
    )
    page = compared(log, second, ours)
    assert "Validation metric: wrong" in page.text
    assert "wrong0" in page.text.replace("\n", "")  # above the scale
    assert "validation metric: wrong, last0.50.50.125" in page.text.replace("\n", "")
    other = run(tmp_path, "third", metric_name="right")
    assert "training metric: right, last" in compared(log, other).text


def test_a_loss_that_became_nan_is_shown_as_such(tmp_path):
    good, bad = run(tmp_path, "good", [3.0, 2.0, 1.0, 0.5]), tmp_path / "bad"
    bad.mkdir()
    lines = [progress(100 * i, loss=loss) for i, loss in enumerate([1.5, 1.5, None, None], 1)]
    write(bad / "run.jsonl", [start(), *lines, {"event": "end", "samples": 400, "interrupted": True}])
    page = compared(good, bad)
    assert "bad: training loss is NaN or ∞ from 300 label samples on." in page.text
    assert "training loss, last0.5NaN or ∞, 1.5 at 200" in page.text.replace("\n", "")
    assert "bad was interrupted at 400 label samples." in page.text
    assert "good has no end in its log after 400 label samples" in page.text
    assert "metric, last" in page.text
    lost = tmp_path / "lost"
    lost.mkdir()
    write(lost / "run.jsonl", [start(), progress(100, loss=None), progress(200, loss=None)])
    assert "lost: training loss is NaN or ∞ from 100 label samples on." in compared(good, lost).text


def test_constant_rates_are_a_sentence(tmp_path):
    a, b = run(tmp_path, "a"), run(tmp_path, "b")
    page = compared(a, b)
    assert "The learning rate is 0.1 throughout, in a, b." in page.text
    assert "Learning rate" not in page.text
    (tmp_path / "c").mkdir()
    lines = [progress(100 * i, rates=[0.2]) for i in (1, 2)]
    write(tmp_path / "c" / "run.jsonl", [start(), *lines])
    assert "The learning rate is 0.1 in a, 0.2 in c, throughout." in compared(a, tmp_path / "c").text
    write(tmp_path / "c" / "run.jsonl", [start(), *lines, progress(300, rates=[0.1])])
    assert "Learning rate" in compared(a, tmp_path / "c").text


def test_the_same_run_twice_is_refused(tmp_path):
    a, b = run(tmp_path, "a"), run(tmp_path, "b")
    for runs in ((a, b, a), (a, a / "run.jsonl"), (a, tmp_path / "b" / ".." / "a")):
        with pytest.raises(ValueError, match=r"expected different runs to compare, got .*a/run\.jsonl twice"):
            fl.report(runs)


def test_noisy_curves_have_moving_means_in_the_colour_of_their_run(tmp_path):
    noisy = [1 / i + 0.2 * (i % 2) for i in range(1, 101)]
    path = fl.report([run(tmp_path, "a", noisy), run(tmp_path, "b", [4.0, 3.0]), run(tmp_path, "c", noisy[::-1])])
    text = path.read_text("utf-8")
    assert list(Page(text).columns("curve-0"))[1:] == ["a, mean of 5", "b", "c, mean of 5", "a", "c"]
    chart = text[text.index('id="curve-0"') : text.index('id="curve-1"')]
    lines = [part[: part.index('"')] for part in chart[chart.index("<figure>") :].split('class="line ')[1:]]
    assert lines == ["s1 faint", "s3 faint", "s1 under", "s2", "s3"]  # the last on top


def test_long_curves_of_several_runs_are_averaged(tmp_path):
    """Interleaved rows of two runs would make jagged extremes."""
    a = run(tmp_path, "a", [1.0 - i / 2000 for i in range(1000)])
    (tmp_path / "b").mkdir()
    lines = [progress(100 * i + 50, loss=1.0 - i / 2000) for i in range(1000)]
    write(tmp_path / "b" / "run.jsonl", [start(), *lines])
    page = compared(a, tmp_path / "b")
    assert "Each point is the average of about 7 numbers." in page.text
    for name in "ab":
        numbers = [float(n) for n in page.columns("curve-0")[name] if n]
        assert numbers == sorted(numbers, reverse=True)
        assert len(numbers) > 250


@pytest.mark.parametrize("feed", [None, {}, {"state": None}, {"state": "../.."}, {"state": [1]}, {"state": {}}])
def test_a_state_of_none_leaves_the_order_open(feed):
    """A log that was damaged is shown as far as it can be read."""
    assert {*order_facts({"feed": feed}).values()} == {None}
