"""Metrics in a file that is replaced every few seconds, for node_exporter's textfile collector."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

from feedline.concurrency.named_threads import begin
from feedline.errors import DataError
from feedline.feed.files.atomic import atomic_file

_WRITE_S = 5.0
_END_S = 1.0

_log = logging.getLogger("feedline")


class MetricsFile:
    """Writes a registry of prometheus_client until it is closed.

    Args:
        path: file to replace. Its folder is created if missing.
        registry: registry to write.

    Raises:
        OSError, DataError: it cannot be written. Later, that is logged, and the next writing is tried.
    """

    def __init__(self, path: Path, registry: Any) -> None:
        self.path, self._registry = path, registry
        self._write()
        self._ended = threading.Event()
        self._thread = begin("metrics-file", self._keep_written)

    def close(self) -> None:
        """End the thread, and write the file once more."""
        self._ended.set()
        self._thread.end(_END_S)
        self._try_to_write()

    def _keep_written(self) -> None:
        while not self._ended.wait(_WRITE_S):
            self._try_to_write()

    def _try_to_write(self) -> None:
        try:
            self._write()
        except (OSError, DataError) as error:
            _log.warning("metrics are not written to %s: %s", self.path, error)

    def _write(self) -> None:
        from prometheus_client import generate_latest

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(self.path) as file:
            file.write(generate_latest(self._registry))
