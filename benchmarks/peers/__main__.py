"""``python -m benchmarks.peers``, or ``make bench-peers``: all workloads, one table.

The exit code is 0 unless one of our own contenders fails. The failures of peers are in the table.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.__main__ import _write as write_file
from benchmarks.disk import evict, fill
from benchmarks.peers import WORKLOADS, install, table
from benchmarks.peers.contender import OURS, Contender, Workload, load
from benchmarks.peers.turns import ROOT, TurnError, command_of, turn

#: Turns of each contender in the page cache. Evicted there is one.
ROUNDS = 3
#: For writing a format's data.
WRITING_S = 240.0


def main(arguments: list[str] | None = None) -> int:
    """Run the workloads, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, metavar="WORKLOAD", default=WORKLOADS)
    parser.add_argument("--peers", nargs="+", metavar="PEER", help="these and feedline only")
    parser.add_argument("--quick", action="store_true", help="little data, one round: does it run at all?")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--data", type=Path, default=ROOT / "bench-data" / "peers", help="folder for generated data")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", help="where results go")
    options = parser.parse_args(arguments)
    options.data.mkdir(parents=True, exist_ok=True)
    options.results.mkdir(parents=True, exist_ok=True)
    name = f"{datetime.date.today().isoformat()}-{machine.slug()}-peers{'-quick' if options.quick else ''}"
    path = options.results / f"{name}.json"
    report: dict[str, Any] = {
        "quick": options.quick,
        "machine": machine.describe() | {"versions": install.versions()},
        "refused": install.refused(),
        # Workloads of the same day that are not asked for stay as they were measured.
        "workloads": json.loads(path.read_text())["workloads"] if path.exists() and options.only != WORKLOADS else {},
    }
    try:
        for one in options.only:
            report["workloads"][one] = measured(one, load(one), options)
    finally:
        shutil.rmtree(options.data, ignore_errors=True)
    report["workloads"] = {one: report["workloads"][one] for one in WORKLOADS if one in report["workloads"]}
    write_file(path, json.dumps(report, indent=1) + "\n")
    write_file(path.with_suffix(".md"), table.page(report))
    print("\n" + table.page(report))
    print(f"written to {path.with_suffix('')}.md and .json")
    failed = [row["name"] for found in report["workloads"].values() for row in found["rows"] if failure_of_ours(row)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def failure_of_ours(row: dict[str, Any]) -> bool:
    """Whether one of our contenders gave no figure."""
    return bool(row["peer"] == OURS and row["failed"])


def measured(name: str, workload: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """All turns of a workload: its rows, in JSON types."""
    print(f"{name}: {workload.title}", flush=True)
    began, load_before = time.monotonic(), machine.load()
    rows = list(entries(workload, options.peers))
    count = workload.count[options.quick]
    folder = options.data / name
    formats = write(name, workload, folder, count, {row["form"] for row in rows if not row["failed"]})
    for row in rows:
        row["failed"] = row["failed"] or formats.get(row["form"], "")
    run = resumed if workload.resumes else alternated
    run(name, workload, rows, folder, count, options)
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "date": datetime.date.today().isoformat(),
        "load": [load_before, machine.load()],
        "seconds": round(time.monotonic() - began),
        "title": workload.title,
        "unit": workload.unit,
        "by": workload.by,
        "count": count,
        "absent": workload.absent,
        "rows": rows,
    }


def entries(workload: Workload, peers: list[str] | None) -> Iterator[dict[str, Any]]:
    """A row for each contender and number of workers."""
    for contender in workload.contenders:
        if peers is not None and contender.peer not in (OURS, *peers):
            continue
        for workers in contender.workers:
            missing = [module for module in contender.needs if not install.found(module)]
            yield {
                "name": contender.name,
                "peer": contender.peer,
                "setting": contender.setting,
                "workers": workers,
                "form": contender.form,
                "order": contender.order,
                "delivers": contender.delivers,
                "failed": f"{', '.join(missing)}: not installed" if missing else "",
                "warm": [],
                "cold": [],
            }


def write(name: str, workload: Workload, folder: Path, count: int, forms: set[str]) -> dict[str, str]:
    """Write the data, and a smaller part to be checked. Return the reasons of failures, by format."""
    failed = {}
    for form in sorted(forms):
        print(f"  writing {form} ...", end=" ", flush=True)
        began = time.monotonic()
        try:
            arguments = [form, name, "--data", str(folder / form), "--make", str(count)]
            turn([*arguments, *([] if workload.resumes else ["--check", str(folder / f"{form}-check")])], WRITING_S)
            print(f"{time.monotonic() - began:.0f} s", flush=True)
        except TurnError as error:
            failed[form] = str(error)
            print(f"FAILED: {error}", flush=True)
    return failed


def alternated(
    name: str, workload: Workload, rows: list[dict[str, Any]], folder: Path, count: int, options: argparse.Namespace
) -> None:
    """Turns round by round, in an order that rotates: in the page cache, then evicted."""
    rounds = 1 if options.quick else options.rounds
    plan = [("warm", number) for number in range(rounds)]
    plan += [("cold", 0)] if workload.cold and not options.quick else []
    for state, number in plan:
        print(f"  {state}, round {number + 1}:", flush=True)
        first = number * len(rows) // rounds
        chosen = rows
        if (state, number) != ("warm", 0):
            chosen = (table.worth_evicting if state == "cold" else table.worth_repeating)(rows, workload.by)
        for row in rows[first:] + rows[:first]:
            if row["failed"] or row not in chosen:
                continue
            contender = workload.find(row["name"])
            data = folder / row["form"]
            (evict if state == "cold" else fill)(data)
            arguments = ["--seconds", "0.3"] if options.quick else []
            if workload.whole or (number == 0 and state == "warm"):
                arguments += ["--check", str(folder / f"{row['form']}-check")]
            taken(name, contender, row, state, data, arguments, options)


def taken(
    name: str,
    contender: Contender,
    row: dict[str, Any],
    state: str,
    data: Path,
    arguments: list[str],
    options: argparse.Namespace,
) -> None:
    """One turn, which is added to its row."""
    with tempfile.TemporaryDirectory(dir=options.data) as scratch:
        try:
            found = turn([*command_of(contender, name, row["workers"], data, Path(scratch)), *arguments])
            row[state].append(found)
            said = f"{found['units'] / found['wall_s']:,.0f}/s, first {1e3 * found['first_s']:.0f} ms"
        except TurnError as error:
            row["failed"] = said = str(error)
    print(f"    {row['name']}, {row['workers']} workers: {said}", flush=True)


def resumed(
    name: str, workload: Workload, rows: list[dict[str, Any]], folder: Path, count: int, options: argparse.Namespace
) -> None:
    """Let each contender read up to a state once. Then turns go on from it, round by round."""
    rounds = 1 if options.quick else options.rounds
    states = options.data / "states"
    states.mkdir(exist_ok=True)
    for number in range(-1, rounds):
        print("  reading up to the states:" if number < 0 else f"  round {number + 1}:", flush=True)
        for at, row in enumerate(rows):
            if row["failed"]:
                continue
            contender = workload.find(row["name"])
            data, file = folder / row["form"], states / str(at)
            fill(data)
            with tempfile.TemporaryDirectory(dir=options.data) as scratch:
                arguments = command_of(contender, name, row["workers"], data, Path(scratch))
                try:
                    if number < 0:
                        saving = turn([*arguments, "--save", str(file), "--samples", str(count)], 2 * WRITING_S)
                        row["state_bytes"] = saving["state_bytes"]
                        said = f"a state of {row['state_bytes']} bytes"
                    else:
                        found = turn([*arguments, "--resume", str(file)])
                        row["warm"].append(found)
                        said = f"{1e3 * found['resume_s']:.1f} ms, {'right' if found['right'] else 'WRONG'}"
                except TurnError as error:
                    row["failed"] = said = str(error)
            print(f"    {row['name']}, {row['workers']} workers: {said}", flush=True)
    shutil.rmtree(states)


if __name__ == "__main__":
    sys.exit(main())
