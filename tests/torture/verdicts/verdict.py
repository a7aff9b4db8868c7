"""Run a program under the doctor, and compare the verdict."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.verdicts.program import Program

ROOT = Path(__file__).resolve().parents[3]
_LIMIT_S = 120.0
_NEAR = 2.5  # factor between a predicted gain and the measured one: both runs share their machine


@dataclass
class Verdict:
    """What the doctor says about a program.

    Attributes:
        findings: the findings, worst first.
        seconds: time of the loop, of the slowest rank.
    """

    findings: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            "; ".join(
                f"{f['stage']} of rank {f['rank']}, {f['gain']:.2f}x: {f['reason']} {f['evidence']}"
                for f in self.findings
            )
            or "healthy"
        )


def examine(program: Program, folder: Path, *, mended: bool = False) -> Verdict:
    """Run a program on all its ranks. Return the verdict.

    Raises:
        RuntimeError: it failed.
    """
    log = folder / "log.jsonl"
    started = []
    with contextlib.ExitStack() as open_:
        for rank in range(program.ranks):
            place = folder / f"rank{rank}"
            place.mkdir()
            open_.enter_context(program.around(place))
            environment = {**os.environ, "FEEDLINE_DOCTOR": "json" if program.ranks == 1 else str(log)}
            environment |= {"RANK": str(rank), "WORLD_SIZE": str(program.ranks), "OMP_NUM_THREADS": "1"}
            if program.ranks == 1:
                del environment["RANK"], environment["WORLD_SIZE"]
            command = [sys.executable, "-m", "tests.torture.verdicts", program.name, str(place), str(rank)]
            process = subprocess.Popen(
                command + ["mended"] * mended,
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            open_.callback(process.wait)
            open_.callback(process.kill)
            started.append(process)
        ends = [process.communicate(timeout=_LIMIT_S) for process in started]
    for process, (_, errors) in zip(started, ends, strict=True):
        if process.returncode:
            raise RuntimeError(f"{program.name} ended with {process.returncode}: {errors[-2000:]}")
    lines = [output.splitlines() for output, _ in ends]
    seconds = max(float(line.split()[1]) for output in lines for line in output if line.startswith("seconds "))
    if program.ranks == 1:
        return Verdict(json.loads(lines[0][-1])["findings"], seconds)
    return Verdict(_of_logs(log, program.ranks), seconds)


def _of_logs(log: Path, ranks: int) -> list[dict[str, Any]]:
    from feedline.runs.diagnosis import RankRecord, diagnose

    paths = [log.with_name(f"{log.name}.rank{rank}") for rank in range(ranks)]
    records = [RankRecord.from_json(json.loads(path.read_text().splitlines()[-1])["record"]) for path in paths]
    return [finding.to_json() for finding in diagnose(records)]


def fault_in(program: Program, verdict: Verdict) -> str | None:
    """Return what is wrong with a verdict, or None."""
    if not program.stage:
        return f"expected no finding, got {verdict}" if verdict.findings else None
    expected = f"{program.stage} of rank {program.rank} with {' and '.join(program.says)}"
    if not verdict.findings:
        return f"expected {expected}, got no finding"
    first = verdict.findings[0]
    text = f"{first['reason']} {first['evidence']} {first['setting']}"
    right = first["stage"] == program.stage and first["rank"] == program.rank and first["gain"] > 1
    return None if right and all(part in text for part in program.says) else f"expected {expected}, got {verdict}"


def misses_gain(verdict: Verdict, mended: Verdict) -> str | None:
    """Return how far the gain of a verdict is from the measured one, or None if it is near."""
    predicted, measured = verdict.findings[0]["gain"], verdict.seconds / mended.seconds
    if measured / _NEAR <= predicted <= measured * _NEAR:
        return None
    return f"expected a gain near {measured:.2f}, which was measured, got {predicted:.2f} predicted"
