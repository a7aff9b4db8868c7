"""The table of a run, from its JSON: for each peer and number of workers its better setting, next to our better one.

A ratio is the median of ratios within a round, ours to theirs, so that above 1 we are ahead. Where a
peer is ahead, or closer than `CLOSE`, the table gives the reason, from `reasons`. A row without a reason notes that.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import shown, spread
from benchmarks.peers import WORKLOADS
from benchmarks.peers.contender import OURS
from benchmarks.peers.reasons import reason

#: By what decides a workload: a turn's figure, more of which is better.
FIGURES: dict[str, Callable[[dict[str, Any]], float]] = {
    "cpu": lambda turn: turn["units"] / max(turn["cpu_s"], 1e-3),
    "rate": lambda turn: turn["units"] / turn["wall_s"],
    "first_s": lambda turn: 1 / turn["first_s"],
    "resume_s": lambda turn: 1 / turn["resume_s"],
}
UNKNOWN = "no reason was looked for yet."
#: Workloads that differ little from others, and are not in the small table.
VARIANTS = ("hub", "meshes")
#: A ratio below which a line needs a reason: what keeps us from being further ahead.
CLOSE = 1.2
#: Factor by which a peer may be slower than us in the first round and still be measured again.
FAR = 6.0
COLUMNS = (
    "contender",
    "workers",
    "mixes",
    "{unit}",
    "spread",
    "us of CPU a sample",
    "first batch, ms",
    "memory, MB",
    "evicted, {unit}",
    "feedline is ahead",
    "by CPU",
)
RESUME_COLUMNS = (
    "contender",
    "workers",
    "next batch after, ms",
    "spread",
    "ms of CPU",
    "state, bytes",
    "the right batches",
    "feedline is ahead",
)


@dataclass(frozen=True)
class Line:
    """The better setting of a peer for a number of workers.

    Attributes:
        row: a row of the report.
        evicted: the better one with evicted files. None: it was not measured.
        ratio: ours to theirs within a round. None: it is ours, or there is none to compare with.
        cold: the same, evicted.
        cpu: the first by processor time.
    """

    row: dict[str, Any]
    evicted: dict[str, Any] | None = None
    ratio: float | None = None
    cold: float | None = None
    cpu: float | None = None

    @property
    def ahead(self) -> bool:
        """Whether the peer is ahead of us, in the page cache or evicted."""
        return self.within(1)

    @property
    def close(self) -> bool:
        """Whether the peer is ahead of us, or nearly so."""
        return self.within(CLOSE)

    def within(self, factor: float) -> bool:
        """Return whether we are less than ``factor`` times ahead, in the page cache or evicted."""
        return any(ratio is not None and ratio < factor for ratio in (self.ratio, self.cold))


def values(row: dict[str, Any], by: str, state: str = "warm") -> list[float]:
    """Return the figure that decides, by round. More is better."""
    return [FIGURES[by](turn) for turn in row[state]]


def median(row: dict[str, Any], by: str, state: str = "warm") -> float:
    """Return the median of `values`. 0 where there are none."""
    found = values(row, by, state)
    return statistics.median(found) if found else 0.0


def lines(found: dict[str, Any]) -> list[Line]:
    """The lines of a workload, ours first, then peers as they come, those with no figure last."""
    by = found["by"]
    best, evicted = better(found["rows"], by, "warm"), better(found["rows"], by, "cold")
    made = []
    for (peer, workers), row in best.items():
        cold = evicted[peer, workers]
        line = Line(row, cold if cold["cold"] else None)
        ours = best.get((OURS, workers))
        if peer != OURS and ours is not None and row["warm"]:
            line = replace(
                line,
                ratio=ratio(ours, row, by, "warm"),
                cold=ratio(evicted[OURS, workers], cold, by, "cold"),
                cpu=ratio(ours, row, "cpu", "warm") if by == "rate" else None,
            )
        made.append(line)
    return sorted(made, key=lambda line: (not line.row["warm"], line.row["peer"] != OURS))


def better(rows: Sequence[dict[str, Any]], by: str, state: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the better setting by peer and number of workers. One lucky round is not better than several, so a
    setting that was measured more often comes first.
    """
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        key = row["peer"], row["workers"]
        rank = len(row[state]), median(row, by, state)
        if key not in best or rank > (len(best[key][state]), median(best[key], by, state)):
            best[key] = row
    return best


def worth_evicting(rows: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Return the rows to measure with evicted files: all settings of the peers in `worth_repeating`."""
    kept = {(row["peer"], row["workers"]) for row in worth_repeating(rows, by)}
    return [row for row in rows if row["warm"] and (row["peer"], row["workers"]) in kept]


def worth_repeating(rows: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Return the rows that are measured again: of each peer its better setting, unless ours is `FAR` times faster."""
    kept = []
    for row in rows:
        rivals = [other for other in rows if (other["peer"], other["workers"]) == (row["peer"], row["workers"])]
        ours = [other for other in rows if (other["peer"], other["workers"]) == (OURS, row["workers"])]
        best = max(median(other, by) for other in rivals)
        bar = max((median(other, by) for other in ours), default=0.0) / FAR
        if row["warm"] and median(row, by) >= best and (row["peer"] == OURS or best >= bar):
            kept.append(row)
    return kept


def ratio(ours: dict[str, Any], theirs: dict[str, Any], by: str, state: str) -> float | None:
    """Return the median of ratios within a round. None where one of them was not measured."""
    pairs = list(zip(values(ours, by, state), values(theirs, by, state), strict=False))
    return statistics.median(mine / other for mine, other in pairs) if pairs else None


def page(report: dict[str, Any]) -> str:
    """Return the whole page as Markdown."""
    about = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    out = [
        "# feedline and its peers",
        "",
        f"{about['processor']}, {about['cores']} cores, {about['memory_gb']} GB; {about['system']}; "
        f"Python {about['python']}; {versions}.",
        "",
        "Each contender runs in a fresh process, in turn, with what its own documentation recommends; of several "
        "settings the better one is shown. Rates and times are of the wall clock, medians of rounds; processor time "
        "is that of all processes and threads; memory is private and shared pages of all processes at their peak, "
        "without pages of mapped files. *Ahead* is the median of ratios within a round, above 1 feedline is better; "
        "*by CPU* compares processor time a sample. What was measured once only has no spread: it is far behind, or "
        "evicted. Before it is measured, a contender delivers less data, and every number of a sample must come once; "
        "one that resumes must deliver the batches of a run that was not stopped. Workers are processes or threads "
        "that call the dataset; 0 may include threads of a loader's own, as ours that reads and copies ahead from "
        "files. What delivers NumPy arrays does without torch, which takes 120 MB.",
        *(["", "**Quick run: these figures mean little.**"] if report["quick"] else []),
        *(f"\n{peer} does not install: {why}" for peer, why in report["refused"].items()),
    ]
    for name, found in report["workloads"].items():
        out += ["", f"## {name}: {found['title']}", "", f"{found['count']:,} samples. {circumstances(report, found)}"]
        out += ["", *(resumes(found) if found["by"] == "resume_s" else rates(found))]
        remarks = [*close(name, report), *(f"{peer}: {why}" for peer, why in found["absent"].items())]
        out += ["", *(f"- {remark}" for remark in remarks)] if remarks else []
    return "\n".join(out) + "\n"


def circumstances(report: dict[str, Any], found: dict[str, Any]) -> str:
    """When a workload was measured, and whether others wanted the cores, which ours are not yet in the load before."""
    before, after = found["load"]
    text = f"{found['date']}, {found['seconds']} s, load average before and after {before}, {after}"
    if crowded(report, found):
        cores = report["machine"]["cores"]
        text += f" on {cores} cores: **others wanted them, so the figures want repeating on an idle machine**"
    return text + "."


def crowded(report: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether more processes wanted the cores than contenders have."""
    return max(found["load"][0] or 0.0, found["load"][1] or 0.0) > 2 * report["machine"]["cores"]


README_COLUMNS = ("workload", "feedline", "torch `DataLoader`", "best peer", "ratio")


def readme(report: dict[str, Any]) -> list[str]:
    """Return the small table: for each workload but `VARIANTS` the best of any number of workers."""
    rows = [list(README_COLUMNS)]
    for found in (found for name, found in report["workloads"].items() if name not in VARIANTS):
        by = found["by"]
        measured = [row for row in better(found["rows"], by, "warm").values() if row["warm"] and trusted(row)]
        ours = max((row for row in measured if row["peer"] == OURS), key=lambda row: median(row, by))
        peers = [row for row in measured if row["peer"] != OURS]
        best = max(peers, key=lambda row: median(row, by))
        torchs = [row for row in peers if row["peer"] == "torch DataLoader"]
        usual = said(max(torchs, key=lambda row: median(row, by)), by) if torchs else ""
        # Of the figures shown: these two may differ in their number of workers, so they were no neighbours in a round.
        times = shown(median(ours, by) / median(best, by))
        # A title begins with the delivered samples. The size of a batch is on the page.
        title = re.split("[:,] ", found["title"])[0]
        unit = f" {found['unit']}" if by == "rate" else ""
        rows.append([title, f"{said(ours, by)}{unit}", usual, f"{best['peer']}: {said(best, by)}", f"{times}x"])
    return markdown(rows)


def newest(reports: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the last report with every workload of these reports, oldest first, as it was measured last.

    A workload can be measured again on its own (ONLY=tiny), so no single run need hold them all.
    """
    workloads: dict[str, Any] = {}
    report: dict[str, Any] = {}
    for report in reports:
        workloads |= report["workloads"]
    return report | {"workloads": {name: workloads[name] for name in WORKLOADS if name in workloads}}


def trusted(row: dict[str, Any]) -> bool:
    """Whether the right samples came after a state, where there was one."""
    return all(turn.get("right", True) for turn in row["warm"])


def said(row: dict[str, Any], by: str) -> str:
    """What decides a workload: a rate, or milliseconds."""
    value = median(row, by)
    return shown(value) if by == "rate" else f"{shown(1e3 / value)} ms"


def rates(found: dict[str, Any]) -> list[str]:
    """The table of a workload that counts samples."""
    rows = []
    for line in lines(found):
        row = line.row
        start = [label(row), str(row["workers"])]
        if not row["warm"]:
            rows.append([*start, *[""] * 7, row["failed"], ""])
            continue
        warm = row["warm"]
        rows.append(
            [
                *start,
                row["order"],
                shown(median(row, "rate")),
                f"{spread(values(row, found['by'])):.0%}" if len(warm) > 1 else "",
                shown(statistics.median(1e6 * turn["cpu_s"] / max(turn["units"], 1) for turn in warm)),
                shown(statistics.median(1e3 * turn["first_s"] for turn in warm)),
                shown(statistics.median(turn["private"] / 1e6 for turn in warm)),
                cold_cell(line),
                compared(line),
                "" if line.cpu is None else f"{shown(line.cpu)}x",
            ]
        )
    columns = [column.format(unit=found["unit"]) for column in COLUMNS]
    without = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    return markdown([[row[at] for at in without] for row in [columns, *rows]])


def resumes(found: dict[str, Any]) -> list[str]:
    """The table of a workload that resumes."""
    rows = []
    for line in lines(found):
        row = line.row
        start = [label(row), str(row["workers"])]
        if not row["warm"]:
            rows.append([*start, *[""] * 5, row["failed"]])
            continue
        right = all(turn["right"] for turn in row["warm"])
        rows.append(
            [
                *start,
                shown(statistics.median(1e3 * turn["resume_s"] for turn in row["warm"])),
                f"{spread(values(row, 'resume_s')):.0%}" if len(row["warm"]) > 1 else "",
                shown(statistics.median(1e3 * turn["cpu_s"] for turn in row["warm"])),
                f"{row['state_bytes']:,}",
                "yes" if right else "**no**",
                compared(line),
            ]
        )
    return markdown([list(RESUME_COLUMNS), *rows])


def label(row: dict[str, Any]) -> str:
    """Peer and setting."""
    name = f"{row['peer']} ({row['setting']})" if row["setting"] else row["peer"]
    return (
        f"**{name}**" if row["peer"] == OURS else name + ("" if row["delivers"] == "torch" else f", {row['delivers']}")
    )


def cold_cell(line: Line) -> str:
    """The rate with evicted files, and the setting if it is another one."""
    if line.evicted is None:
        return ""
    rate = shown(median(line.evicted, "rate", "cold"))
    return rate if line.evicted is line.row else f"{rate} ({line.evicted['setting']})"


def compared(line: Line) -> str:
    """How far we are ahead, or that we are not."""
    if line.ratio is None:
        return ""
    said = f"{shown(line.ratio)}x" + ("" if line.cold is None else f"; evicted {shown(line.cold)}x")
    return f"**{said}**" if line.ahead else said


def close(name: str, report: dict[str, Any]) -> list[str]:
    """Say why, for each line of a workload in which a peer is ahead or close."""
    found = report["workloads"][name]
    return [
        f"**{line.row['peer']}, {line.row['workers']} workers, is {'ahead' if line.ahead else 'close'}** "
        f"({compared(line).strip('*')}): "
        + (reason(name, line.row["peer"], line.row["workers"]) or excuse(report, found, line) or UNKNOWN)
        for line in lines(found)
        if line.close
    ]


def excuse(report: dict[str, Any], found: dict[str, Any], line: Line) -> str:
    """Return the reason, others had the processor, if a peer is ahead with more processor time. Else an empty text."""
    if line.cpu is None or line.cpu < 1 or (line.cold or 1.0) < 1 or not crowded(report, found):
        return ""
    return (
        f"a sample takes {shown(line.cpu)} times the processor time that it takes us, while other programs wanted the "
        "cores, so this lead may be the machine's doing."
    )


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as a table. The first is its head."""
    head, *rest = rows
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rest)]


def main() -> None:
    """Write the newest page again, with the reasons that were found since, and print the table of the README."""
    reports = committed()
    path, report = reports[-1]
    path.with_suffix(".md").write_text(page(report))
    print("\n".join(readme(newest(report for _, report in reports))))


def committed() -> list[tuple[Path, dict[str, Any]]]:
    """Return the committed comparisons and their paths, oldest first."""
    folder = Path(__file__).resolve().parent.parent / "results"
    reports = [(path, json.loads(path.read_text())) for path in sorted(folder.glob("*-peers.json"))]
    return [(path, report) for path, report in reports if "workloads" in report]


if __name__ == "__main__":
    main()
