"""Who is told how a run goes: one reporter a file, any number of them at a time.

`Console` for people, `ProgressPrinter` for those who read CNTK's lines, `JsonLines` for programs and for `plot_losses`,
`TensorBoard`. A reporter sees sums that may still be on a device; those that print wait for it, once a progress span.
"""

from feedline.train.report.base import Silent
from feedline.train.report.console import Console
from feedline.train.report.lines import JsonLines, plot_losses, read_lines
from feedline.train.report.printer import ProgressPrinter
from feedline.train.report.tensorboard import TensorBoard

__all__ = ["Console", "JsonLines", "ProgressPrinter", "Silent", "TensorBoard", "plot_losses", "read_lines"]
