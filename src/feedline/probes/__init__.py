"""What is slow in this process: records of its feeds and conditions, their diagnosis, and their export as metrics."""

from feedline.probes.examination import doctor
from feedline.probes.metrics_export import MetricsExport, metrics
from feedline.probes.recorder import Recorder

__all__ = ["MetricsExport", "Recorder", "doctor", "metrics"]
