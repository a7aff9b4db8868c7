"""The JSON documents of ``feedline doctor``."""

from __future__ import annotations

from typing import TypedDict

from feedline.runs.diagnosis import Finding


class DoctorDocument(TypedDict):
    """What limits a run.

    Attributes:
        findings: reasons, the worst first. Empty for a healthy run.
    """

    findings: list[Finding]


Document = DoctorDocument
