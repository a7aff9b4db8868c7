"""What limits a run, on which rank and why: rules over records of its ranks."""

from feedline.runs.diagnosis.all_rules import diagnose, findings_text
from feedline.runs.diagnosis.finding import Finding, findings_document
from feedline.runs.diagnosis.record import FeedRecord, RankRecord
from feedline.runs.diagnosis.record_logs import read_records

__all__ = [
    "FeedRecord",
    "Finding",
    "RankRecord",
    "diagnose",
    "findings_document",
    "findings_text",
    "read_records",
]
