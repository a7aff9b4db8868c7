"""What is slow in this process: records of its feeds and conditions, and their diagnosis."""

from feedline.probes.examination import doctor
from feedline.probes.recorder import Recorder

__all__ = ["Recorder", "doctor"]
