"""What the demo shows while it runs: bars on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from feedline.cli.console import stderr

Update = Callable[[float, str], None]
_QUARTER = 0.25


class View:
    """Shows progress.

    Args:
        quiet_stdout: keep stdout free, for a JSON document at the end; lines go to stderr.
    """

    def __init__(self, quiet_stdout: bool = False) -> None:
        self._lines = sys.stderr if quiet_stdout else sys.stdout

    def say(self, text: str) -> None:
        """A line."""
        print(text, file=self._lines, flush=True)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[Update]:
        """A step that takes a while.

        Yields:
            A function of the share done (0 to 1) and a note.
        """
        if sys.stderr is not None and sys.stderr.isatty():
            columns = (
                TextColumn(name),
                BarColumn(),
                TaskProgressColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
            )
            with Progress(*columns, console=stderr(), transient=True) as bar:
                task = bar.add_task("", total=1.0)
                yield lambda share, note: bar.update(task, completed=share, description=note)
            return
        shown = 0.0

        def show(share: float, note: str) -> None:
            nonlocal shown
            if share >= shown + _QUARTER:
                shown = share - share % _QUARTER
                self.say(f"  {name}: {share:.0%}{' ' if note else ''}{note}")

        yield show
