"""Watch the loops of this process while they run, and say at the end what slows them down."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from feedline.concurrency.named_threads import begin
from feedline.probes.recorder import Recorder
from feedline.probes.torch_loaders import TorchLoaders
from feedline.runs.diagnosis import Finding, RankRecord, diagnose, findings_text
from feedline.runs.log import open_log

_LOOK_S, _WRITE_S = 0.1, 2.0
_COST = 0.002  # largest share of the time of a processor for looks
_ADVANCE_S = 30.0  # whose looks may come at once: a short loop on a slow machine would have too few
_SOON_S = 10.0  # after which looks are rarer
_log = logging.getLogger("feedline")


class Examination:
    """An examination of this process, from its creation to `end`.

    Args:
        log: path of a log, to which a line is added every two seconds for ``feedline doctor``. With several ranks each
            rank writes ``<log>.rank<i>``. None: no log.

    Attributes:
        findings: what limits the loops, worst first. Empty until `end`, and for a healthy program.
        record: what they did. None until `end`.
    """

    def __init__(self, log: str | os.PathLike[str] | None = None) -> None:
        self.findings: list[Finding] = []
        self.record: RankRecord | None = None
        self._log = None if log is None else Path(log)
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
        self._loaders, self._recorder = TorchLoaders(), Recorder()
        self._file: TextIO | None = None
        self._ended = threading.Event()
        self._pid = os.getpid()
        self._thread = begin("doctor", self._look_on)

    def end(self) -> None:
        """End the examination, and fill ``findings`` and ``record``. Idempotent."""
        if self._ended.is_set() or os.getpid() != self._pid:
            return
        self._ended.set()
        self._thread.end(10 * _LOOK_S)
        try:
            self.record = self._recorder.record()
            self.findings = diagnose([self.record])
            self._write("end", self.record)
        finally:
            if self._file is not None:
                self._file.close()
            self._recorder.close()
            self._loaders.close()

    def report(self) -> str:
        """Return the findings as text."""
        return findings_text(self.findings, [] if self.record is None else [self.record])

    def _look_on(self) -> None:
        started = written = time.monotonic()
        pause_s, looking_s = _LOOK_S, 0.0
        while not self._ended.wait(pause_s):
            began = time.thread_time()
            self._recorder.look()
            looking_s += time.thread_time() - began
            elapsed_s = time.monotonic() - started
            usual_s = _LOOK_S if elapsed_s < _SOON_S else 5 * _LOOK_S
            pause_s = max(usual_s, looking_s / _COST - _ADVANCE_S - elapsed_s)
            if self._log is not None and time.monotonic() - written >= _WRITE_S:
                written = time.monotonic()
                self._write("record", self._recorder.record())

    def _write(self, event: str, record: RankRecord) -> None:
        if self._log is None:
            return
        try:
            self._write_line(event, record, self._log)
        except OSError as error:  # the program goes on
            _log.warning("the log of the doctor cannot be written, and ends here: %s", error)
            self._log = None

    def _write_line(self, event: str, record: RankRecord, log: Path) -> None:
        if self._file is None:
            self._file = open_log(log.with_name(f"{log.name}.rank{record.rank}") if self._recorder.ranks > 1 else log)
            start = {"event": "start", "samples": 0, "time": round(time.time(), 3)}
            self._file.write(json.dumps(start) + "\n")  # lines before are of another process
        line = {"event": event, "samples": self._recorder.batches, "time": round(time.time(), 3)}
        self._file.write(json.dumps({**line, "record": record.to_json()}) + "\n")
        self._file.flush()


@contextlib.contextmanager
def doctor(*, log: str | os.PathLike[str] | None = None) -> Iterator[Examination]:
    """Examine the loops inside the context, and print what slows them down when it ends.

    Sources, loaders and torch's own ``DataLoader`` are examined, with their workers. The text goes to stderr. The
    program's batches, and their order, stay what they are. With ``FEEDLINE_DOCTOR=1`` in the environment a
    whole program is examined without a change. With ``FEEDLINE_DOCTOR=json`` its last line on stdout is a document
    ``{"findings": [...]}``. Another value is the path of a log.

    Args:
        log: path of a log for ``feedline doctor``, see `Examination`.

    Yields:
        The examination, whose ``findings`` are filled at the end.

    Raises:
        OSError: the folder of the log cannot be made. A log that cannot be written is a warning, and ends.
    """
    examination = Examination(log)
    try:
        yield examination
    finally:
        examination.end()
        if examination.record is not None:  # not in a forked child
            print(examination.report(), file=sys.stderr)
