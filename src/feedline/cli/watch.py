"""``feedline watch RUN``: a run in the terminal, while it happens.

On a terminal the screen is redrawn every second, at its current size, until the run ends. Elsewhere there is a line for
each progress span. A run that was killed may be resumed, so watching continues, with a note on the screen. The command
reads only the log, so it works over ssh, during the run or after it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from feedline.cli.console import Debug, Json, print_json, stdout
from feedline.runs.watching import RunWatch, WatchedRun, duration_text, sparkline

_POLL_S = 0.5
_WATCHING_ON = "still watching, in case it is resumed; Ctrl-C ends this"
_NAME, _VALUE = 12, 14  # widths of the first columns


def watch(
    run: Annotated[Path, typer.Argument(help="A run folder, or its log, which need not exist yet.")],
    once: Annotated[bool, typer.Option("--once", help="Show the current state and exit, as --json does.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Watch a training run: how far it is, how long it will take, its loss and speed, and what limits it."""
    log = RunWatch(run)
    if once or json:
        watched = log.look(time.time())
        if watched is None:
            raise FileNotFoundError(f"expected a run folder with a log, or a log, got {run}, where there is none yet")
        if json:
            print_json(_document(watched))
        else:
            stdout().print(frame(watched, stdout().width))
    elif sys.stdout.isatty():
        _on_terminal(log)
    else:
        _in_lines(log)


def _document(watched: WatchedRun) -> dict[str, Any]:
    """Return the present state in JSON types."""
    last = watched.history.spans[-1] if watched.history.spans else None
    limit = watched.limit()
    return {
        "log": str(watched.history.path),
        "state": watched.state,
        "done": watched.done,
        "remaining_s": watched.remaining_s,
        "samples": watched.history.samples,
        "loss": None if last is None else last.loss,
        "metric": None if last is None else last.metric,
        "samples_per_second": watched.speed(),
        "shares": watched.shares(),
        "limit": None if limit is None else limit._asdict(),
        "memory_advice": None if last is None else last.memory_advice,
    }


def _on_terminal(log: RunWatch) -> None:
    # If a shell exports these variables, they may be outdated.
    environ = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}
    console = Console(file=sys.stdout, highlight=False, markup=False, _environ=environ)
    watched = None
    with _ended_by_signal(), Live(console=console, screen=True, auto_refresh=False) as live:
        while watched is None or watched.history.ended is None:
            watched = log.look(time.time())
            shown: Any = Text(f"waiting for a log: {log.path}") if watched is None else frame(watched, console.width)
            if watched is not None and watched.is_silent:
                shown = Group(shown, Text(_WATCHING_ON))
            live.update(shown, refresh=True)
            if watched is None or watched.history.ended is None:
                time.sleep(_POLL_S)
    console.print(frame(watched, console.width))  # the screen is gone, while this line stays


def _in_lines(log: RunWatch) -> None:
    shown, watched, silent = -1, None, False
    while watched is None or watched.history.ended is None:
        watched = log.look(time.time())
        for span in [] if watched is None else watched.history.spans:
            if span.samples > shown:
                shown = span.samples
                done = "" if span.done is None else f"{span.done:.1%}, "
                loss = "-" if span.loss is None else f"{span.loss:.5g}"
                speed = f"{span.counted / span.seconds:,.0f}" if span.seconds else "-"
                waiting = "" if span.waiting is None else f", {span.waiting:.1%} waiting for data"
                print(f"{done}{span.samples:,} label samples, loss {loss}, {speed} samples/s{waiting}", flush=True)
        if watched is not None and watched.is_silent and not silent:
            print(f"{watched.state}; {_WATCHING_ON}", flush=True)
        silent = watched is not None and watched.is_silent
        if watched is None or watched.history.ended is None:
            time.sleep(_POLL_S)
    print(watched.state)


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """End by SystemExit at a signal, so that the terminal is restored."""

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def frame(watched: WatchedRun, width: int) -> Group:
    """Return the screen for a width in characters."""
    history = watched.history
    about = history.about
    room = max(0, width - _NAME - _VALUE - 2)
    model = f"{about['model']}, {about['parameters']:,} parameters" if {"model", "parameters"} <= set(about) else ""
    title = Text.assemble((history.path.resolve().parent.name, "bold"), f"  {model}" if model else "")
    parts: list[Any] = [title, _progress(watched, width), Text(_when(watched)), Text()]
    rows = Table.grid(padding=(0, 1))
    rows.add_column(width=_NAME, no_wrap=True, style="dim")
    rows.add_column(width=_VALUE, no_wrap=True, justify="right")
    rows.add_column(no_wrap=True, overflow="ellipsis")
    for name, value, remark in _rows(watched, room):
        rows.add_row(name, value, Text(remark))
    parts.append(rows)
    limit = watched.limit()
    if limit is not None:
        parts += [Text(), Text.assemble(("what limits  ", "dim"), (limit.stage, "bold"), f": {limit.advice}")]
    if history.spans and history.spans[-1].memory_advice:
        parts += [Text(), Text.assemble(("memory       ", "dim"), history.spans[-1].memory_advice)]
    parts += [Text(), Text(f"{history.path}, {history.lines:,} lines", style="dim", overflow="ellipsis", no_wrap=True)]
    return Group(*parts)


def _progress(watched: WatchedRun, width: int) -> Any:
    history, done = watched.history, watched.done
    where = f"{history.samples:,} {history.counts}"
    if done is None:
        return Text(where)
    line = Table.grid(padding=(0, 1))
    for _ in range(3):
        line.add_column(no_wrap=True)
    bar = ProgressBar(total=1.0, completed=done, width=max(8, min(48, width - len(where) - 10)))
    line.add_row(bar, f"{done:.1%}", where)
    return line


def _when(watched: WatchedRun) -> str:
    took, remaining = watched.elapsed_s, watched.remaining_s
    is_over = watched.history.ended is not None or watched.is_silent
    duration = f"after {duration_text(took)}" if is_over else f"{duration_text(took)} so far"
    parts = [watched.state, duration if took else ""]
    if watched.history.ended is None and remaining is not None:
        parts.append(f"about {duration_text(max(1.0, remaining))} left")
    return ", ".join(part for part in parts if part)


def _rows(watched: WatchedRun, room: int) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and sparkline with remark of each row."""
    history = watched.history
    spans = history.spans
    metric_name = history.about.get("metric_name", "metric")
    for name in ("loss", "metric"):
        numbers = [getattr(span, name) for span in spans]
        finite = [(number, span.samples) for number, span in zip(numbers, spans, strict=True) if number is not None]
        if finite:
            lowest, at = min(finite)
            remark = f"lowest {lowest:.4g} at {at:,}" if name == "loss" else ""
            last = "not finite" if numbers[-1] is None else f"{numbers[-1]:.5g}"
            yield name if name == "loss" else metric_name[:_NAME], last, _line(numbers, room, remark)
    for kind in ("validation", "test"):
        averages = [average for average in history.averages if average.kind == kind]
        losses = [average.loss for average in averages]
        if any(loss is not None for loss in losses):
            metric = averages[-1].metric
            remark = "" if metric is None else f"{metric_name} {metric:.4g}"
            yield kind, "not finite" if losses[-1] is None else f"{losses[-1]:.5g}", _line(losses, room, remark)
    speed, shares = watched.speed(), watched.shares()
    if speed is not None:
        speeds = [span.counted / span.seconds if span.seconds else None for span in spans]
        yield "samples/s", f"{speed:,.0f}", _line(speeds, room, bounds=(0.0, None))
    waits = [span.waiting for span in spans]
    if "waiting for data" in shares or any(wait is not None for wait in waits):
        yield "waiting", f"{shares.get('waiting for data', 0.0):.1%}", _line(waits, room, bounds=(0.0, 1.0))
    activities = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if name in ("evaluating", "saving"))
    if activities:
        yield "also", "", activities
    if history.skipped:
        yield "skipped", f"{history.skipped:,}", "unreadable sequences"


def _line(
    numbers: list[float | None], room: int, remark: str = "", bounds: tuple[float, float | None] | None = None
) -> str:
    remark = f"  {remark}" if remark else ""
    return sparkline(numbers, min(60, max(8, room - len(remark))), bounds) + remark
