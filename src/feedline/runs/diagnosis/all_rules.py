"""Diagnose a run from the records of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from feedline.runs.diagnosis import data_rules, loop_rules, machine_rules
from feedline.runs.diagnosis.finding import Finding
from feedline.runs.diagnosis.rank_view import RankView
from feedline.runs.diagnosis.record import RankRecord

_NAMED = 8  # ranks that a finding lists
_TIERS = (
    machine_rules.RULES,
    data_rules.RULES,
    data_rules.DECODING_RULES,
    (loop_rules.limit,),
    loop_rules.RULES,
)
_LEAST_GAIN = 1.05  # of a change that is worth it


def diagnose(records: Sequence[RankRecord]) -> list[Finding]:
    """Return what limits the loops of ranks, worst first. An empty list if nothing does but their steps.

    A reason that holds for several ranks is a finding about the worst of them, whose evidence names the others.

    Args:
        records: a record of each rank, over the same span.
    """
    views = _views(records)
    by_reason: dict[tuple[object, str], list[Finding]] = {}
    for view in filter(lambda view: view.tells, views):
        explained = False  # why it waits for data
        for rules in _TIERS:
            if explained and rules is not loop_rules.RULES:  # what else is slow follows from it
                continue
            for rule in rules:
                finding = rule(view)
                if finding is not None and finding.gain >= _LEAST_GAIN:
                    by_reason.setdefault((rule, finding.stage), []).append(finding)
                    explained = explained or finding.stage != "step"
    return sorted(map(_worst, by_reason.values()), key=lambda finding: -finding.gain)


def findings_text(findings: list[Finding], records: Sequence[RankRecord]) -> str:
    """Return the findings about the records of ranks as text, worst first."""
    judged, ranks = any(RankView(record).tells for record in records), len(records)
    if not judged:
        return (
            "feedline doctor: no loop was long enough to judge: expected at least 0.2 s and 4 minibatches of a source "
            "or loader."
        )
    if not findings:
        of = "of this rank" if ranks == 1 else f"of these {ranks} ranks"
        return f"feedline doctor: nothing slows down the loop {of} but its own step."
    return "\n".join(["feedline doctor, worst first:", *map(str, findings)])


def late_ranks(records: Sequence[RankRecord]) -> list[Finding]:
    """Return a finding about each rank that the others wait for, see `loop_rules.late_rank`.

    Args:
        records: see `diagnose`.
    """
    views = [view for view in _views(records) if view.tells]
    most = max((view.exchanging for view in views), default=0.0)
    # Only these may be late. Comparing each of a thousand ranks with all others would take seconds.
    findings = [loop_rules.late_rank(view) for view in views if view.exchanging <= most / 2]
    return [finding for finding in findings if finding is not None]


def _views(records: Sequence[RankRecord]) -> list[RankView]:
    views = [RankView(record) for record in records]
    for view in views:
        view.peers = [peer for peer in views if peer is not view]
    return views


def _worst(findings: list[Finding]) -> Finding:
    """Return the worst of findings about several ranks."""
    worst = max(findings, key=lambda finding: finding.gain)
    ranks = sorted(finding.rank for finding in findings if finding is not worst)
    if not ranks:
        return worst
    names = ", ".join(map(str, ranks[:_NAMED])) + (", …" if len(ranks) > _NAMED else "")
    return replace(
        worst, evidence=f"{worst.evidence} The same holds for {'rank' if len(ranks) == 1 else 'ranks'} {names}."
    )
