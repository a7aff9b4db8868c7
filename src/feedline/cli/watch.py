"""``feedline watch RUN``: a run in the terminal, while it happens.

On a terminal the screen is drawn anew every second, at its present size, until the run ends; elsewhere there is a line
for each progress span. A run that was killed may be resumed, so it is watched on, which the screen says. Only the log
is read, so it works over ssh, beside the run or after it.
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
from feedline.runs.watching import RunWatch, WatchedRun, sparkline, spoken

_POLL_S = 0.5
_WATCHING_ON = "watching on, in case it is resumed; Ctrl-C ends this"
_NAME, _VALUE = 12, 14  # widths of the first columns


def watch(
    run: Annotated[Path, typer.Argument(help="A run folder, or its log; it may not be there yet.")],
    once: Annotated[bool, typer.Option("--once", help="Show the present state, and end; so does --json.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Watch a training run: how far it is, how long it will take, its loss and speed, and what limits it."""
    log = RunWatch(run)
    if once or json:
        seen = log.look(time.time())
        if seen is None:
            raise FileNotFoundError(f"expected a run folder with a log, or a log, got {run}, where there is none yet")
        if json:
            print_json(_document(seen))
        else:
            stdout().print(frame(seen, stdout().width))
    elif sys.stdout.isatty():
        _on_terminal(log)
    else:
        _in_lines(log)


def _document(seen: WatchedRun) -> dict[str, Any]:
    """Return the present state in JSON types."""
    last = seen.history.spans[-1] if seen.history.spans else None
    limit = seen.limit()
    return {
        "log": str(seen.history.path),
        "state": seen.state,
        "done": seen.done,
        "remaining_s": seen.remaining_s,
        "samples": seen.history.samples,
        "loss": None if last is None else last.loss,
        "metric": None if last is None else last.metric,
        "samples_per_second": seen.speed(),
        "shares": seen.shares(),
        "limit": None if limit is None else limit._asdict(),
    }


def _on_terminal(log: RunWatch) -> None:
    # Of a shell that exports them, these would be the size that the terminal had when the shell looked.
    environ = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}
    console = Console(file=sys.stdout, highlight=False, markup=False, _environ=environ)
    seen = None
    with _ended_by_signal(), Live(console=console, screen=True, auto_refresh=False) as live:
        while seen is None or seen.history.ended is None:
            seen = log.look(time.time())
            shown: Any = Text(f"waiting for a log: {log.path}") if seen is None else frame(seen, console.width)
            if seen is not None and seen.is_silent:
                shown = Group(shown, Text(_WATCHING_ON))
            live.update(shown, refresh=True)
            if seen is None or seen.history.ended is None:
                time.sleep(_POLL_S)
    console.print(frame(seen, console.width))  # the screen is gone; this stays


def _in_lines(log: RunWatch) -> None:
    shown, seen, silent = -1, None, False
    while seen is None or seen.history.ended is None:
        seen = log.look(time.time())
        for span in [] if seen is None else seen.history.spans:
            if span.samples > shown:
                shown = span.samples
                done = "" if span.done is None else f"{span.done:.1%}, "
                loss = "-" if span.loss is None else f"{span.loss:.5g}"
                speed = f"{span.counted / span.seconds:,.0f}" if span.seconds else "-"
                waiting = "" if span.waiting is None else f", {span.waiting:.1%} waiting for data"
                print(f"{done}{span.samples:,} label samples, loss {loss}, {speed} samples/s{waiting}", flush=True)
        if seen is not None and seen.is_silent and not silent:
            print(f"{seen.state}; {_WATCHING_ON}", flush=True)
        silent = seen is not None and seen.is_silent
        if seen is None or seen.history.ended is None:
            time.sleep(_POLL_S)
    print(seen.state)


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """End by SystemExit when asked to, so that the terminal gets its screen back."""

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def frame(seen: WatchedRun, width: int) -> Group:
    """Return the screen for a width in characters."""
    history = seen.history
    about = history.about
    room = max(0, width - _NAME - _VALUE - 2)
    model = f"{about['model']}, {about['parameters']:,} parameters" if {"model", "parameters"} <= set(about) else ""
    title = Text.assemble((history.path.resolve().parent.name, "bold"), f"  {model}" if model else "")
    parts: list[Any] = [title, _progress(seen, width), Text(_when(seen)), Text()]
    rows = Table.grid(padding=(0, 1))
    rows.add_column(width=_NAME, no_wrap=True, style="dim")
    rows.add_column(width=_VALUE, no_wrap=True, justify="right")
    rows.add_column(no_wrap=True, overflow="ellipsis")
    for name, value, rest in _rows(seen, room):
        rows.add_row(name, value, Text(rest))
    parts.append(rows)
    limit = seen.limit()
    if limit is not None:
        parts += [Text(), Text.assemble(("what limits  ", "dim"), (limit.stage, "bold"), f": {limit.advice}")]
    parts += [Text(), Text(f"{history.path}, {history.lines:,} lines", style="dim", overflow="ellipsis", no_wrap=True)]
    return Group(*parts)


def _progress(seen: WatchedRun, width: int) -> Any:
    history, done = seen.history, seen.done
    where = f"{history.samples:,} {history.counts}"
    if done is None:
        return Text(where)
    line = Table.grid(padding=(0, 1))
    for _ in range(3):
        line.add_column(no_wrap=True)
    bar = ProgressBar(total=1.0, completed=done, width=max(8, min(48, width - len(where) - 10)))
    line.add_row(bar, f"{done:.1%}", where)
    return line


def _when(seen: WatchedRun) -> str:
    took, left = seen.elapsed_s, seen.remaining_s
    is_over = seen.history.ended is not None or seen.is_silent
    told = f"after {spoken(took)}" if is_over else f"{spoken(took)} so far"
    parts = [seen.state, told if took else ""]
    if seen.history.ended is None and left is not None:
        parts.append(f"about {spoken(max(1.0, left))} left")
    return ", ".join(part for part in parts if part)


def _rows(seen: WatchedRun, room: int) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and sparkline with remark of each row."""
    history = seen.history
    spans = history.spans
    metric_name = history.about.get("metric_name", "metric")
    for name in ("loss", "metric"):
        numbers = [getattr(span, name) for span in spans]
        known = [(number, span.samples) for number, span in zip(numbers, spans, strict=True) if number is not None]
        if known:
            lowest, at = min(known)
            remark = f"lowest {lowest:.4g} at {at:,}" if name == "loss" else ""
            last = "not finite" if numbers[-1] is None else f"{numbers[-1]:.5g}"
            yield name if name == "loss" else metric_name[:_NAME], last, _line(numbers, room, remark)
    for kind in ("validation", "test"):
        averages = [one for one in history.averages if one.kind == kind]
        losses = [one.loss for one in averages]
        if any(loss is not None for loss in losses):
            metric = averages[-1].metric
            remark = "" if metric is None else f"{metric_name} {metric:.4g}"
            yield kind, "not finite" if losses[-1] is None else f"{losses[-1]:.5g}", _line(losses, room, remark)
    speed, shares = seen.speed(), seen.shares()
    if speed is not None:
        speeds = [span.counted / span.seconds if span.seconds else None for span in spans]
        yield "samples/s", f"{speed:,.0f}", _line(speeds, room, bounds=(0.0, None))
    waits = [span.waiting for span in spans]
    if "waiting for data" in shares or any(wait is not None for wait in waits):
        yield "waiting", f"{shares.get('waiting for data', 0.0):.1%}", _line(waits, room, bounds=(0.0, 1.0))
    others = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if name in ("evaluating", "saving"))
    if others:
        yield "also", "", others
    if history.skipped:
        yield "skipped", f"{history.skipped:,}", "unreadable sequences"


def _line(
    numbers: list[float | None], room: int, remark: str = "", bounds: tuple[float, float | None] | None = None
) -> str:
    remark = f"  {remark}" if remark else ""
    return sparkline(numbers, min(60, max(8, room - len(remark))), bounds) + remark
