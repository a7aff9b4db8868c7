"""Progress of long loops, for people: ``progress=True`` of feeds, of `convert`, of `validate` and of indexing.

On a terminal this is a bar of rich, redrawn by the loop itself, so that there is no thread. Elsewhere, as in the log of
a job, it is a line every half minute. It costs a clock reading for each step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, TextIO

from feedline.errors import install_line

#: Called with the number done and the total, 0 where it is unknown.
Report = Callable[[int, int], None]
#: Type of ``progress=``: a function, or whether to show progress.
Progress = Report | bool | None

_REDRAW_S, _LINE_S = 0.2, 30.0


@contextmanager
def showing(
    progress: Progress, what: str, unit: str = "B", remark: Callable[[], str] | None = None
) -> Iterator[Report | None]:
    """Provide the function to call with (done, total) during the block: the caller's, a bar, or None for no progress.

    Args:
        progress: see `Progress`.
        what: description, such as ``"converting"``.
        unit: unit of the numbers, ``"B"`` for bytes.
        remark: function that returns a text to add to the line.

    Raises:
        TypeError: ``progress`` is something else.
    """
    if progress is True:
        with closing(ShownProgress(what, unit, remark)) as shown:
            yield shown
    else:
        yield None if progress is False else expect_progress(progress)


def expect_progress(progress: Any) -> Any:
    """Return a value that `Progress` allows, unchanged.

    Raises:
        TypeError: anything else.
    """
    if progress is None or isinstance(progress, bool) or callable(progress):
        return progress
    raise TypeError(f"expected progress=True, False, None or a function of (done, total), got {progress!r:.80}")


class ShownProgress:
    """A bar, or lines. Nothing is shown before the first call.

    Args:
        what, unit, remark: see `showing`.
        file: output. None: standard error.

    Raises:
        ModuleNotFoundError: on a terminal, rich is not installed.
    """

    def __init__(
        self, what: str, unit: str, remark: Callable[[], str] | None = None, file: TextIO | None = None
    ) -> None:
        self._what, self._unit, self._remark = what, unit, remark
        self._file = sys.stderr if file is None else file
        self._began = self._shown_at = time.monotonic()
        self._first: int | None = None
        self._last: tuple[int, int] | None = None
        self._bar = _bar(self._file) if self._file.isatty() else None
        if self._bar is not None:
            self._shown_at -= _REDRAW_S  # a bar is shown from the first call on
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        """Show progress, if the last time is long enough ago."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._began = done, now
        self._last = (done, total)
        if now - self._shown_at >= (_LINE_S if self._bar is None else _REDRAW_S):
            self._shown_at = now
            self._show(now)

    def _show(self, now: float) -> None:
        assert self._last is not None
        done, total = self._last
        passed, went = now - self._began, done - (self._first or 0)
        counts = f"{self._amount(done)} of {self._amount(total)}" if total else self._amount(done)
        parts = [counts + ("" if self._unit == "B" else f" {self._unit}")]
        if passed > 0 and went:
            parts.append(f"{self._amount(went / passed)}/s")
            if total:
                parts.append(f"{_clock(max(0, total - done) * passed / went)} left")
        parts += [self._remark()] if self._remark is not None else []
        text = ", ".join(part for part in parts if part)
        if self._bar is None:
            print(f"{self._what}: {text}", file=self._file, flush=True)
            return
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=total or None, text="")
        self._bar.update(self._task, completed=done, total=total or None, text=text)
        self._bar.refresh()

    def _amount(self, n: float) -> str:
        if self._unit != "B":
            return f"{n:,.0f}" if n >= 10 or n == int(n) else f"{n:.2g}"
        for unit in ("B", "kB", "MB", "GB"):
            if n < 1000:
                return f"{n:.3g} {unit}"
            n /= 1000
        return f"{n:.3g} TB"

    def close(self) -> None:
        """Remove the bar. Without a bar, print a last line if there was one before."""
        if self._bar is not None and self._task is not None:
            self._bar.stop()
        elif self._bar is None and self._last is not None and self._shown_at > self._began:
            self._show(time.monotonic())
        self._last = self._task = None


def _bar(file: TextIO) -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"progress=True needs rich; run: {install_line('cli')}") from error
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    return RichProgress(*columns, console=Console(file=file), transient=True, auto_refresh=False)


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"
