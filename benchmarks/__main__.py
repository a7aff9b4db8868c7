"""``python -m benchmarks``: answer each question in a fresh process; print the table and save it.

The exit code is 0 unless a benchmark itself fails. A missed target is a result, not a failure.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import QUESTIONS, machine
from benchmarks.harness import Answer, Stage, Target, markdown_table, text_table

ROOT = Path(__file__).resolve().parent.parent
#: Peak size of the data folder in bytes, at scale 1.
FULL_DATA = 9e9
#: A store must fit into the page cache together with everything else.
FULL_MEMORY = 7e9
#: Valid selections: a question, or the first word of several, such as ``cold`` for `cold_peers`.
_SUBJECTS = tuple(dict.fromkeys([*QUESTIONS, *(name.partition("_")[0] for name in QUESTIONS)]))


def main(arguments: list[str] | None = None) -> int:
    """Run the questions, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=_SUBJECTS, metavar="NAME", help=f"of {', '.join(QUESTIONS)}; or all that begin so"
    )
    parser.add_argument("--quick", action="store_true", help="small data, two rounds: does it run at all?")
    parser.add_argument("--keep", action="store_true", help="leave the generated data behind")
    parser.add_argument("--data", type=Path, default=ROOT / "bench-data", help="folder for generated data")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", help="where results go")
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.answer:
        return _answer(options.answer, Stage(options.data, options.quick, options.scale))

    existed = options.data.exists()
    options.data.mkdir(parents=True, exist_ok=True)
    began, load_before = time.monotonic(), machine.load()
    scale, remark = (1.0, "") if options.quick else _room(options.data)
    if remark:
        print(remark)
    answers: dict[str, list[Answer]] = {}
    seconds: dict[str, float] = {}
    failed: list[str] = []
    try:
        for name in _asked(options.only):
            started = time.monotonic()
            print(f"{name} ...", end=" ", flush=True)
            found = ask(name, options, scale)
            seconds[name] = round(time.monotonic() - started, 1)
            if found is None:
                failed.append(name)
                print("FAILED")
            else:
                answers[name] = found
                print(f"{seconds[name]:.0f} s")
    finally:
        if not options.keep:
            shutil.rmtree(options.data) if not existed else _empty(options.data)
    rows = [answer for each in answers.values() for answer in each]
    print("\n" + text_table(rows) + "\n")
    for answer in rows:
        if answer.note:
            print(f"- {answer.question}: {answer.note}")
    report = {
        "date": datetime.date.today().isoformat(),
        "quick": options.quick,
        "machine": machine.describe(),
        "load": [load_before, machine.load()],
        "remark": remark,
        "seconds": seconds,
        "failed": failed,
        "answers": [
            dataclasses.asdict(answer) | {"met": answer.met, "asked": name}
            for name, each in answers.items()
            for answer in each
        ],
    }
    path = _save(options.results, report)
    print(f"\n{time.monotonic() - began:.0f} s in all; written to {path}.md and .json")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _asked(only: list[str] | None) -> list[str]:
    """Return the questions selected by name or by subject."""
    return [name for name in QUESTIONS if only is None or name in only or name.partition("_")[0] in only]


def _answer(name: str, stage: Stage) -> int:
    """In the fresh process: answer one question on standard output's last line."""
    answers = importlib.import_module(f"benchmarks.{name}").run(stage)
    print("\n" + json.dumps([dataclasses.asdict(answer) for answer in answers]))
    return 0


def ask(name: str, options: argparse.Namespace, scale: float) -> list[Answer] | None:
    """Answer a question in a fresh process. None, after showing its output, if that fails."""
    command = [sys.executable, "-m", "benchmarks", "--answer", name, "--data", str(options.data)]
    command += ["--scale", str(scale)] + (["--quick"] if options.quick else [])
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        print(ran.stdout + ran.stderr, file=sys.stderr)
        return None
    return [load_answer(given) for given in json.loads(ran.stdout.strip().splitlines()[-1])]


def load_answer(given: dict[str, Any]) -> Answer:
    """Read an answer from its JSON form, with or without what a report adds to it."""
    values = {field.name: given[field.name] for field in dataclasses.fields(Answer)}
    target = given["target"]
    return Answer(**values | {"target": None if target is None else Target(**target)})


def _room(folder: Path) -> tuple[float, str]:
    """Return the share of the full data that disk and memory can hold, and a remark if it is less than all."""
    free = shutil.disk_usage(folder).free
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []:
        if line.startswith("MemAvailable:"):
            memory = int(line.split()[1]) * 1024
    scale = min(1.0, 0.8 * free / FULL_DATA, memory / FULL_MEMORY)
    if scale >= 1.0:
        return 1.0, ""
    return scale, (
        f"data scaled to {scale:.0%} of the sizes named: {free / 1e9:.1f} GB of disk are free, "
        f"{memory / 1e9:.1f} GB of memory available"
    )


def _empty(folder: Path) -> None:
    """Remove generated files from a folder that existed before the run."""
    for entry in folder.glob("bench-*"):
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _save(folder: Path, report: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{report['date']}-{machine.slug()}{'-quick' if report['quick'] else ''}"
    path = folder / f"{name}.json"
    if path.exists():  # questions of the same day that were not asked again stay as they were answered
        earlier = json.loads(path.read_text())
        kept = [answer for answer in earlier["answers"] if answer.get("asked") not in report["seconds"]]
        report["answers"] = kept + report["answers"]
        report["failed"] = [name for name in earlier["failed"] if name not in report["seconds"]] + report["failed"]
        report["seconds"] = earlier["seconds"] | report["seconds"]
        report["load"] = [earlier["load"][0], report["load"][1]]
    answers = [load_answer(answer) for answer in report["answers"]]
    about = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = [
        f"# Benchmarks, {report['date']}",
        "",
        f"{about['processor']}, {about['cores']} cores, {about['memory_gb']} GB; {about['system']}; "
        f"Python {about['python']}; {versions}.",
        f"Load average before and after: {report['load'][0]}, {report['load'][1]}. "
        "Ratios are medians of ratios inside one round, by CPU time unless said; above 1 is better for feedline.",
        *(["", f"**Quick run: these figures mean little.** {report['remark']}"] if report["quick"] else []),
        *(["", report["remark"]] if report["remark"] and not report["quick"] else []),
        "",
        markdown_table(answers),
        "",
        *[f"- **{answer.question}**: {answer.note}" for answer in answers if answer.note],
        *(["", f"Failed: {', '.join(report['failed'])}."] if report["failed"] else []),
        "",
    ]
    _write(folder / f"{name}.md", "\n".join(lines))
    _write(path, json.dumps(report, indent=1) + "\n")
    return folder / name


def _write(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


if __name__ == "__main__":
    sys.exit(main())
