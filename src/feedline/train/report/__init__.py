"""Reporters of a session's events. A session can have several.

`Console` is for people, `ProgressPrinter` for tools that read CNTK's lines, `JsonLines` for programs and `plot_losses`,
`TensorBoard` for TensorBoard, and `Metrics` for Prometheus and OpenTelemetry. Reporters receive sums that may still be
on a device. Reporters that print wait for them once in each progress span.
"""

from feedline.train.report.base import Silent
from feedline.train.report.console import Console
from feedline.train.report.lines import JsonLines, plot_losses, read_lines
from feedline.train.report.metrics_reporter import Metrics
from feedline.train.report.printer import ProgressPrinter
from feedline.train.report.tensorboard import TensorBoard

__all__ = ["Console", "JsonLines", "Metrics", "ProgressPrinter", "Silent", "TensorBoard", "plot_losses", "read_lines"]
