"""Export what the feeds of this process do, and under which conditions, to Prometheus or OpenTelemetry."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from feedline.errors import install_line
from feedline.probes.current_metrics import CurrentMetrics
from feedline.probes.metric_instruments import observe
from feedline.probes.metric_names import MetricValue
from feedline.probes.metrics_file import MetricsFile
from feedline.probes.metrics_server import MetricsServer

_MAX_PORT = 65535


class MetricsExport:
    """An export of the metrics of this process, as a context. See `feedline.metrics` for its arguments."""

    def __init__(
        self,
        *,
        port: int | None = None,
        path: str | os.PathLike[str] | None = None,
        host: str = "127.0.0.1",
        meter: Any = None,
    ) -> None:
        if port is None and path is None and meter is None:
            raise ValueError("expected port, path or meter, got none of them; pass port=9464 to serve metrics there")
        if port is not None and (type(port) is not int or not 0 <= port <= _MAX_PORT):
            raise ValueError(f"expected a port from 0 to {_MAX_PORT}, got {port!r}; 0 is any free one")
        if (port is not None or path is not None) and find_spec("prometheus_client") is None:
            raise ModuleNotFoundError(f"prometheus_client is not installed; run: {install_line('metrics')}")
        if meter is not None and not hasattr(meter, "create_observable_counter"):
            raise TypeError(
                f"expected a meter of OpenTelemetry, got {meter!r:.80}; call opentelemetry.metrics.get_meter(name)"
            )
        self._port, self._path, self._host, self._meter = port, None if path is None else Path(path), host, meter
        self._server: MetricsServer | None = None
        self._file: MetricsFile | None = None
        self._closing: contextlib.ExitStack | None = None  # while it is open
        self._pid = 0

    @property
    def port(self) -> int | None:
        """Port that the metrics are served on. None while they are not."""
        return None if self._server is None else self._server.port

    @property
    def path(self) -> Path | None:
        """File that the metrics are written to. None while they are not."""
        return None if self._file is None else self._file.path

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def open(self) -> None:
        """Begin. All figures count from now on.

        Raises:
            OSError: the port is in use, or the file cannot be written.
            ValueError: it is open already, or the port is too high for the rank.
        """
        if self._closing is not None:
            raise ValueError("expected an export that is closed, got an open one; close it, or make another one")
        self._pid, self._closing = os.getpid(), contextlib.ExitStack()
        try:
            self._begin(self._closing)
        except BaseException:
            self.close()
            raise

    def _begin(self, closing: contextlib.ExitStack) -> None:
        current = closing.enter_context(contextlib.closing(CurrentMetrics(self._session_values)))
        rank, several = current.rank, current.ranks > 1
        if self._port is not None:
            if self._port and self._port + rank > _MAX_PORT:
                raise ValueError(
                    f"expected port + rank of at most {_MAX_PORT}, got {self._port} + {rank}; pass a lower port, or 0"
                )
            self._server = MetricsServer(self._host, self._port and self._port + rank, current.registry())
            closing.callback(self._server.close)
        if self._path is not None:
            name = f"{self._path.stem}.rank{rank}{self._path.suffix}" if several else self._path.name
            self._file = MetricsFile(self._path.with_name(name), current.registry())
            closing.callback(self._file.close)
        if self._meter is not None:
            closing.callback(observe(self._meter, current.read))

    def close(self) -> None:
        """End: write the file once more, close the port, and end all threads. Idempotent."""
        closing = self._closing
        if closing is None or os.getpid() != self._pid:  # a forked child, whose parent goes on
            return
        try:
            closing.close()
        finally:
            self._closing = self._server = self._file = None

    def _session_values(self) -> Iterable[MetricValue]:
        """Return the values of a training session. Nothing without one."""
        return ()


def metrics(
    *,
    port: int | None = None,
    path: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    meter: Any = None,
) -> MetricsExport:
    """Export metrics of this process while a ``with`` block runs: what each stage of its feeds does, and conditions.

    Sources, loaders and torch's own ``DataLoader`` are measured, with their workers. `feedline.train.Metrics` is the
    same as a reporter of a session. The page on metrics lists the names.

    Args:
        port: port on which Prometheus can read the metrics, plus the rank if there are several. 0: any free port,
            which ``port`` of the result names.
        path: file that is replaced every five seconds, for node_exporter's textfile collector, such as
            ``metrics.prom``. With several ranks each writes its own, such as ``metrics.rank3.prom``. It stays.
        host: address to listen on. The default is reached from this machine only.
        meter: meter of OpenTelemetry, as ``opentelemetry.metrics.get_meter("training")`` returns it. Its provider
            exports the metrics.

    Returns:
        A context, with the attributes ``port`` and ``path``.

    Raises:
        ModuleNotFoundError: prometheus_client is not installed, see the extra ``metrics``.
        OSError: on entering it, the port is in use, or the file cannot be written.
        ValueError, TypeError: none of port, path and meter, or a wrong one.
    """
    return MetricsExport(port=port, path=path, host=host, meter=meter)
