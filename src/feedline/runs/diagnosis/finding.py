"""A finding: what is slow, the evidence, and the setting to change."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason why a loop is slower than it could be.

    Attributes:
        stage: stage that limits the loop, see `feedline.concurrency.stages`.
        rank: rank that it limits.
        host: name of the rank's machine.
        reason: why, in a sentence.
        evidence: the figures that show it, in a sentence.
        setting: what to change, in a sentence.
        gain: predicted speed-up of the loop by that change, 1.0 or more.
    """

    stage: str
    rank: int
    host: str
    reason: str
    evidence: str
    setting: str
    gain: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self) | {"gain": round(self.gain, 3)}

    def __str__(self) -> str:
        where = f"rank {self.rank} on {self.host}"
        return (
            f"{self.stage.replace('_', '-')}, {where}: {self.reason}\n"
            f"  evidence: {self.evidence}\n"
            f"  change:   {self.setting} (predicted: {self.gain:.2f} times as fast)"
        )


def findings_document(findings: list[Finding]) -> dict[str, Any]:
    """Return findings in JSON types, worst first."""
    return {"findings": [finding.to_json() for finding in findings]}
