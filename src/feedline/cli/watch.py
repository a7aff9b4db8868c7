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
from collections.abc import Callable, Iterator
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
from feedline.runs.diagnosis.rank_view import seconds_text
from feedline.runs.readiness import RankState
from feedline.runs.watching import RunWatch, WatchedRun, duration_text, sparkline

_POLL_S = 0.5
_WATCHING_ON = "still watching, in case it is resumed; Ctrl-C ends this"
_NAME, _VALUE = 12, 14  # widths of the first columns
_MOST_RANKS, _WORST_RANKS = 64, 8  # ranks with a line each, and of more than there is room for
_WIDTHS, _HOST = (4, 9, 9, 8), 24  # of the columns of ranks with figures, and of those with words at most
_BELOW = 6  # lines around those of ranks


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
        "ranks": [state._asdict() for state in watched.ranks()],
    }


def _on_terminal(log: RunWatch) -> None:
    # If a shell exports these variables, they may be outdated.
    environ = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}
    console = Console(file=sys.stdout, highlight=False, markup=False, _environ=environ)
    watched = None
    with _ended_by_signal(), Live(console=console, screen=True, auto_refresh=False) as live:
        while watched is None or watched.history.ended is None:
            watched = log.look(time.time())
            if watched is None:
                shown: Any = Text(f"waiting for a log: {log.path}")
            else:
                shown = frame(watched, console.width, console.height)
            if watched is not None and watched.is_silent:
                shown = Group(shown, Text(_WATCHING_ON))
            live.update(shown, refresh=True)
            if watched is None or watched.history.ended is None:
                time.sleep(_POLL_S)
    console.print(frame(watched, console.width))  # the screen is gone, while this line stays


def _in_lines(log: RunWatch) -> None:
    shown, watched, silent = -1, None, False
    late: set[tuple[int, str | None]] = set()
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
        now_late = [] if watched is None else [state for state in watched.ranks() if state.late]
        for state in now_late:
            if (state.rank, state.late) not in late:
                print(f"rank {state.rank} on {state.host} is late: {state.late_word}", flush=True)
        late = {(state.rank, state.late) for state in now_late}
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


def frame(watched: WatchedRun, width: int, height: int | None = None) -> Group:
    """Return the screen for a width in characters, and a height in lines. None is any height."""
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
    ranks = watched.ranks()
    if ranks:
        room = _MOST_RANKS if height is None else min(_MOST_RANKS, height - len(parts) - rows.row_count - _BELOW)
        parts += [Text(), *_rank_lines(ranks, room)]
    parts += [Text(), Text(f"{history.path}, {history.lines:,} lines", style="dim", overflow="ellipsis", no_wrap=True)]
    return Group(*parts)


def _rank_lines(ranks: list[RankState], room: int) -> Iterator[Any]:
    """Yield a table with a line for each rank, or for the worst ones and a line about all others if there is no room
    for all."""
    shown = ranks
    if len(ranks) > room:
        worst = sorted(ranks, key=lambda state: (state.late is None, -state.own_share, -state.waiting))
        shown = sorted(worst[: max(1, min(_WORST_RANKS, room - 1))])
    lines = Table.grid(padding=(0, 2))
    for width in _WIDTHS:
        lines.add_column(no_wrap=True, min_width=width, justify="right")
    for _ in range(3):
        lines.add_column(no_wrap=True, overflow="ellipsis", max_width=_HOST)
    heads = ("rank", "data wait", "rank wait", "own step", "stage", "host", "")
    lines.add_row(*(Text(head, style="dim") for head in heads))
    for state in shown:
        lines.add_row(
            str(state.rank),
            f"{state.waiting:.0%}",
            "-" if state.exchanging is None else f"{state.exchanging:.0%}",
            seconds_text(state.step_seconds),
            state.stage_word,
            state.host,
            f"late: {state.late_word}" if state.late else "",
            style="bold red" if state.late else "",
        )
    yield lines
    hidden = [state for state in ranks if state not in shown]
    if hidden:
        exchanges = [state.exchanging for state in hidden if state.exchanging is not None]
        parts = [
            f"data wait {_range([state.waiting for state in hidden], '{:.0%}'.format)}",
            *([f"rank wait {_range(exchanges, '{:.0%}'.format)}"] if exchanges else []),
            f"own step {_range([state.step_seconds for state in hidden], seconds_text)}",
        ]
        yield Text(f"{len(hidden)} ranks more: {', '.join(parts)}", overflow="ellipsis", no_wrap=True)


def _range(figures: list[float], text_of: Callable[[float], str]) -> str:
    low, high = text_of(min(figures)), text_of(max(figures))
    return low if low == high else f"{low} to {high}"


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
