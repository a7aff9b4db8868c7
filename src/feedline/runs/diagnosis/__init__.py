"""What limits a run, on which rank and why: rules over records of its ranks."""

from feedline.runs.diagnosis.all_rules import diagnose
from feedline.runs.diagnosis.finding import Finding
from feedline.runs.diagnosis.record import FeedRecord, RankRecord

__all__ = ["FeedRecord", "Finding", "RankRecord", "diagnose"]
