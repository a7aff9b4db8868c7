"""``feedline.report``, which shows a run as one page.

The page is self-contained. It opens from disk, without a network, and prints. A log of any length makes a page of a few
hundred kilobytes, as long charts are thinned (see `chart_rows`). Cost: one pass over the log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from feedline._version import __version__
from feedline.runs import comparison_page, page, rank_map
from feedline.runs.chart_rows import MAX_ROWS
from feedline.runs.charts import (
    MIN_BUSY,
    NOT_FINITE,
    constant_rates,
    feed_charts,
    learning_charts,
    time_charts,
    total_seconds_by_part,
)
from feedline.runs.compare_runs import order_facts, read_compared_runs, setting_in_words
from feedline.runs.drawing import figures
from feedline.runs.findings import findings
from feedline.runs.folder import MAX_LISTED, Run, read_run
from feedline.runs.history import CorpusShare, History
from feedline.runs.stage_table import limits, stage_records, stage_table

MAX_CHECKPOINTS = 20
_ROWS = f"Of more than {MAX_ROWS} rows the first, last, lowest and highest of each stretch are shown. "


RunPath = str | os.PathLike[str]


def report(run: RunPath | Sequence[RunPath], output: RunPath | None = None, *, refresh_s: float | None = None) -> Path:
    """Make a self-contained HTML page of a training run, with its curves, the use of its time, and its feed.

    For several runs, make a page that compares them: curves in common charts, results, and differences.

    Args:
        run: path of a run folder with ``run.jsonl`` (or one other log of `feedline.train.JsonLines` or ``feedline bench
            --log``), and maybe ``quarantine*.jsonl`` and ``network.svg``, or path of the log. For a comparison a list
            of two to six of them, of which some may be event files of TensorBoard, or folders of these.
        output: path of the page. None means ``report.html`` next to the log, or ``comparison.html`` in the folder that
            the runs have in common. An existing file is replaced atomically.
        refresh_s: seconds after which the page, while it is open, loads itself again from disk, unless its reader is
            looking at a value. None means never. A page of a run that has ended never does.

    Returns:
        The path of the page.

    Raises:
        FileNotFoundError: no such folder, or no log in it.
        DataError: several logs to choose from, or a file that is not a log.
        ValueError: ``output`` is the log, ``refresh_s`` is less than 1, or too few or too many runs.
        ModuleNotFoundError: event files, and tensorboard is not installed.
    """
    if refresh_s is not None and not refresh_s >= 1:
        raise ValueError(f"expected refresh_s of at least 1 second, or None, got {refresh_s}")
    if not isinstance(run, (str, os.PathLike)):
        return _compare(list(run), output, refresh_s)
    loaded = read_run(run)
    path = loaded.folder / "report.html" if output is None else Path(output)
    _write(html(loaded, None if loaded.history.ended else refresh_s), path, [loaded.history.path])
    return path


def _compare(runs: Sequence[RunPath], output: RunPath | None, refresh_s: float | None) -> Path:
    if refresh_s is not None:
        raise ValueError("expected refresh_s=None for several runs, whose page does not load itself again")
    comparison_page.check_count(len(runs))
    compared = read_compared_runs(runs)
    text = comparison_page.html(compared)
    common = Path(os.path.commonpath([os.path.abspath(run.path.parent) for run in compared]))
    path = common / "comparison.html" if output is None else Path(output)
    _write(text, path, [run.path for run in compared])
    return path


def _write(text: str, path: Path, logs: Sequence[Path]) -> None:
    """Replace a file, which must not be one of ``logs``.

    Names from data may contain undecodable bytes, as file names do. They are shown as escapes.
    """
    if path.exists() and any(path.samefile(log) for log in logs):
        raise ValueError(f"expected another file than the log, got {path}: the page would be written over it")
    # A browser that loads the page at this moment gets the old or the new page, never a part.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def html(run: Run, refresh_s: float | None = None) -> str:
    """Return the page, which loads itself again every ``refresh_s`` seconds. None means never."""
    history = run.history
    is_feed = history.is_feed
    learning, times, feeds = learning_charts(history), time_charts(history), feed_charts(history)
    restarts = history.restarts
    records = stage_records(history.path)
    stages = "".join(map(stage_table, records[:1]))
    said = [*(limited := limits(records)), *findings(run, limited=bool(limited))]
    parts = [
        ("summary", "In short", page.findings(said or ["Nothing stands out."])),
        ("learning", "Learning", figures(learning, restarts) + page.paragraph(constant_rates(history))),
        ("time", "Where the time went", _time_bar(run) + stages + figures(times, restarts)),
        (
            "feed",
            "The feed",
            page.paragraph(_read(history)) + _corpora(history) + _ranks(history) + figures(feeds, restarts),
        ),
        ("ranks", "The ranks", rank_map.section(history.ranks)),
        ("errors", "Errors and quarantine", _errors(run)),
        ("checkpoints", "Checkpoints", "" if is_feed else _checkpoints(run)),
        ("network", "The network", _network(run)),
        ("about", "About this run", f'<div class="card">{page.facts(_about(run))}</div>'),
    ]
    title = f"{'Feed' if is_feed else 'Training run'}: {history.about.get('path', run.name) if is_feed else run.name}"
    thinned = any(len(chart.table.rows) < chart.table.total for chart in learning + times + feeds)
    body = f"""<header><h1>{escape(title)}</h1>{page.refresh_switch(refresh_s)}
<p class="soft">{page.inline(_lead(run))}</p>
{page.tiles(_tiles(run))}
</header>
{page.sections(parts)}
<footer>Made by feedline {escape(__version__)} from {escape(str(history.path))} ({history.lines:,} lines). Charts: move
the pointer over them, or focus one and use the arrow keys; drag, or press + and -, to zoom, Escape to see everything;
the numbers are below each. {_ROWS if thinned else ""}Sizes,
padding, lengths and order are those of the worker that wrote the log.</footer>"""
    return page.document(title, body, rank_map.STYLE if len(history.ranks) > 1 else "", refresh_s=refresh_s)


def _read(history: History) -> str:
    """Return sentences on the origin of bytes, and the cost of decoding, if they are in the log."""
    sums = {
        name: sum(getattr(span, name) or 0.0 for span in history.spans)
        for name in ("asked", "disk", "fetched", "cached", "reading")
    }
    text = []
    if sums["disk"]:
        text.append(f"{_size(sums['disk'])} were fetched from the disk, as the page cache did not hold them.")
    if sums["disk"] and sums["asked"]:
        share = max(0.0, 1 - sums["disk"] / sums["asked"])
        text.append(
            f"Of {_size(sums['asked'])} that were asked for, {share:.0%} came out of the page cache."
            + (" A disk gives whole pages, which were more than was asked for." if sums["disk"] > sums["asked"] else "")
        )
    remote = sums["fetched"] + sums["cached"]
    if remote:
        hits = sums["cached"] / remote
        text.append(f"{_size(remote)} of chunks came from object stores, {hits:.0%} of them out of the cache.")
    threads = sums["reading"] / history.seconds if history.seconds else 0.0
    if threads >= MIN_BUSY:
        text.append(f"Reading and decoding chunks kept {threads:.2g} threads busy, {sums['reading']:,.4g} s in all.")
    return " ".join(text)


def _size(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"


def _corpora(history: History) -> str:
    """Return a table of delivered and declared shares of the corpora of a mixture."""
    shares: dict[str, CorpusShare] = next((span.corpora for span in reversed(history.spans) if span.corpora), {})
    if not shares:
        return ""
    rows = [(name, f"{g.sequences:,}", f"{g.delivered:.3%}", f"{g.declared:.3%}") for name, g in shares.items()]
    return page.table("What each corpus gave, over all ranks", ("corpus", "sequences", "delivered", "declared"), rows)


def _ranks(history: History) -> str:
    """Return a table of the unevenness of the ranks under each balance."""
    measured = history.unevenness()
    if measured is None:
        return ""
    used, by_balance = measured
    measures = list(by_balance)
    rows = [
        (f"{balance} (in this run)" if balance == used else balance, *(f"{by[name]:.3f}" for name in measures))
        for balance, by in by_balance.items()
        if by.keys() == by_balance.keys()
    ]
    heads = ("balance=", *(f"largest {name} / mean" for name in measures))
    return page.table("The rank with the most work, in the last minibatch of each span", heads, rows)


def _lead(run: Run) -> str:
    about, history = run.history.about, run.history
    if history.is_feed:
        return f"{about.get('format', '')}, minibatches of at most {about.get('size')} samples, fed as fast as possible"
    size = f" of {about['parameters']:,} parameters" if "parameters" in about else ""
    model = f"{about['model']}{size}, " if "model" in about else ""
    times = [_moment(time) for time in (about.get("time"), (history.ended or {}).get("time")) if time]
    process = "last process " if history.restarts else ""
    when = f", {process}{' to '.join(dict.fromkeys(times))}" if times else ""
    sweeps = ", 1 sweep" if history.sweeps == 1 else f", {history.sweeps:,} sweeps"
    is_mixture = any(span.corpora for span in history.spans)  # whose corpora have separate sweeps
    return f"{model}{history.samples:,} label samples{'' if is_mixture and not history.sweeps else sweeps}{when}"


def _tiles(run: Run) -> list[tuple[str, str]]:
    history = run.history
    tiles: list[tuple[str, str]] = []
    losses = [(span.samples, span.loss) for span in history.spans if span.counted and not history.is_feed]
    finite = [(at, loss) for at, loss in losses if loss is not None]
    if finite and losses[-1][1] is not None:
        tiles.append((f"{finite[-1][1]:.4g}", "training loss, last span"))
    elif losses:
        was = f": {finite[-1][1]:.4g} at {finite[-1][0]:,}, the last finite one" if finite else ""
        tiles.append((NOT_FINITE, f"training loss, last span{was}"))
    for kind in ("validation", "test"):
        last = next((row for row in reversed(history.averages) if row.kind == kind and row.counted), None)
        if last is not None:
            metric_name = history.about.get("metric_name", "metric")
            metric = "" if last.metric is None else f", {metric_name} {last.metric:.4g}"
            tiles.append((NOT_FINITE if last.loss is None else f"{last.loss:.4g}", f"{kind} loss{metric}"))
    if history.seconds:
        tiles.append((f"{history.speed:,.0f}", f"{history.counts} a second"))
        waiting = total_seconds_by_part(history).get("waiting for data", 0.0) / history.seconds
        tiles.append((f"{waiting:.1%}", "of the time waiting for data"))
        if history.transforming:
            busy = history.transforming / history.seconds
            tiles.append((f"{busy:.2g}", f"thread{'s' * (busy > 1)} busy with transforms (decoding)"))
    fed = history.fed()
    if fed is not None and fed.minibatches:
        tiles.append((f"{fed.samples / fed.minibatches:,.4g}", f"samples a minibatch ({fed.minibatches:,})"))
    if run.quarantined.count or history.skipped:
        tiles.append((f"{max(run.quarantined.count, history.skipped):,}", "sequences skipped"))
    return tiles


def _time_bar(run: Run) -> str:
    """Return the whole wall time, as one bar with a legend that is also its table."""
    end = run.history.ended or {}
    parts = end["seconds_by_part"] if "seconds_by_part" in end else total_seconds_by_part(run.history)
    total = sum(parts.values())
    if not total:
        return ""
    shares = [(f"s{1 + k % 6}", name, seconds, seconds / total) for k, (name, seconds) in enumerate(parts.items())]
    bars = "".join(f'<div class="{kind}" style="flex:{share:.5f}"></div>' for kind, _, _, share in shares)
    legend = "".join(
        f'<li class="{kind}"><i></i> <span>{escape(name)}: {seconds:,.4g} s, {share:.1%}</span></li>'
        for kind, name, seconds, share in shares
    )
    busy = run.history.transforming  # in threads that work concurrently with all other parts
    transformed = (
        f'<p class="says">At the same time transforms (decoding) took {busy:,.4g} s of threads, '
        f"{busy / total:.0%} of the wall time: {busy / total:,.2g} threads were busy with them.</p>"
    )
    return (
        f'<div class="card"><h3>Wall time: {total:,.4g} s</h3><div class="stack" aria-hidden="true">{bars}</div>'
        f'<ul class="parts">{legend}</ul>{transformed if busy else ""}</div>\n'
    )


def _errors(run: Run) -> str:
    listed, skipped = run.quarantined, run.history.skipped
    if not listed.count and not skipped:
        return "<p>No sequence was skipped.</p>"
    text = f"<p>Unreadable sequences were skipped {skipped:,} times.</p>" if skipped else ""
    if not listed.count:
        return text + (
            "<p>There is no quarantine file next to the log: <code>MinibatchSource(..., on_error=fl.Quarantine("
            'folder / "quarantine.jsonl"))</code> puts it there.</p>'
        )
    which = "1 sequence is" if listed.count == 1 else f"{listed.count:,} different sequences are"
    text += f"<p>{which} listed in {escape(', '.join(listed.files))}"
    text += f"; these are the first {MAX_LISTED}.</p>" if listed.count > len(listed.first) else ".</p>"
    columns = ("sequence", "path", "line", "byte", "stream", "reason")
    rows = [["" if line.get(name) is None else str(line[name]) for name in columns] for line in listed.first]
    return text + page.table("Quarantine", columns, rows)


def _checkpoints(run: Run) -> str:
    saved = run.history.saved
    if not saved:
        return "<p>The log has no checkpoints.</p>"
    shown = saved[-MAX_CHECKPOINTS:]
    text = f"<p>{len(saved):,} were written; these are the last {len(shown)}:</p>" if len(shown) < len(saved) else ""
    rows = [
        [
            f"{checkpoint.samples:,}",
            "" if checkpoint.time is None else _moment(checkpoint.time),
            "yes" if run.still_exists(checkpoint) else "no",
            checkpoint.path,
        ]
        for checkpoint in reversed(shown)
    ]
    return text + page.table("Checkpoints", ("label samples", "written", "on disk", "folder"), rows)


def _network(run: Run) -> str:
    if run.network is None:
        return ""
    description = f"Graph of {run.history.about.get('model', 'the network')}: layers and what flows between them"
    return f'<div class="card">{page.picture(run.network, description)}</div>'


def _about(run: Run) -> list[tuple[str, str]]:
    about, history = run.history.about, run.history
    end = history.ended or {}
    rows: list[tuple[str, Any]] = [
        ("log", f"{history.path}, {history.lines:,} line{'' if history.lines == 1 else 's'}"),
        ("written by", f"feedline {about['feedline']}" if "feedline" in about else None),
        ("model", about.get("model")),
        ("parameters", f"{about['parameters']:,}" if "parameters" in about else None),
        ("learners", ", ".join(about.get("learners", []))),
        ("workers", about.get("workers")),
        *((name, setting_in_words(value)) for name, value in (about.get("settings") or {}).items()),
        *order_facts(about).items(),
        ("command", about.get("command")),
        ("commit", about.get("commit")),
        ("machine", about.get("machine")),
        ("versions", ", ".join(f"{name} {text}" for name, text in (about.get("versions") or {}).items())),
        ("threads", ", ".join(f"{name} {n}" for name, n in (about.get("threads") or {}).items())),
        *((f"stream {name}", stream) for name, stream in (about.get("streams") or {}).items()),
        *((f"{name} a sweep", count) for name, count in (about.get("corpus") or {}).items()),
        *((name.replace("_", " "), value) for name, value in end.get("figures", {}).items()),
    ]
    return [
        (name, f"{value:.6g}" if isinstance(value, float) else str(value))
        for name, value in rows
        if value not in (None, "")
    ]


def _moment(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
