"""Generate docs/compat/examples.md. `python -m tests.docs.examples_table RUN ...` writes it from runs of the examples.

A run is a file of JSON lines, a record for each script that was run under `feedline run --as cntk`:

- ``job``, the path of the script, ``arguments``, a list, and ``shortened``, whether its epochs or data were;
- ``rc``, its exit code, negative for a signal, ``cpu``, its CPU seconds, and ``limit_s``, their limit;
- ``last``, the last line that it printed, and ``error``, the lines of errors;
- ``versions``, of the packages that it used, by name.

Records of later files replace those of earlier ones. The command writes the records into benchmarks/results, without
the folders of the machine, and makes the page of them. It refuses versions that constraints.txt does not pin.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "compat" / "examples.md"
RECORDS = ROOT / "benchmarks" / "results" / "cntk-examples.jsonl"
KEYS = ("job", "arguments", "shortened", "rc", "cpu", "limit_s", "last", "error", "versions")
LONGEST, LONGEST_NAME = 40, 42  # characters of a printed line, and of a script's name

_HEAD = """# What runs: CNTK's own examples

This page lists scripts, tutorials and manuals of CNTK 2.7, and how each ended under `feedline run --as cntk SCRIPT`,
as published but for shorter training where a row says so. `python -m tests.docs.examples_table` writes it from [the
records of the run](../../benchmarks/results/cntk-examples.jsonl), which was made with
{versions}.

CPU is seconds of one core of a virtual machine, with one thread, without start-up. Data that is no longer available was
replaced: MNIST by digits of scikit-learn, CIFAR-10 and ImageNet by stripes of ten kinds, Penn Treebank by other text,
AN4 by ten utterances of synthetic features. So the numbers do not show how good a network is.
"""

_TAIL = """## What they also need

- The notebooks need matplotlib, pandas, seaborn and requests, as with CNTK. Names that pandas and NumPy have removed
  since [are restored](../how-to/notebooks.md#names-that-numpy-and-pandas-removed).
- Scripts that load CNTK's own model files (`.model`, `.dnn`) need `pip install '.[cntk]'`: [model files](models.md).
- `binary_convnet.py` trains, saves and loads its network. Then it asks for an operation that is compiled from C++, as
  `native_proposal_layer.py` does at once. The manual of network optimizations uses a network of another notebook.
- `SimpleMNIST.py` asks for the times of single nodes. It gets a line that names the profiler.
"""


def page() -> str:
    """Return the text of the page."""
    records = read(RECORDS)
    ended = [r for r in records if r["rc"] == 0]
    stopped = [r for r in records if r["rc"] == -signal.SIGXCPU]
    failed = [r for r in records if r not in ended and r not in stopped]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(records[0]["versions"].items()))
    parts = [_HEAD.format(versions=versions)]
    parts += _section("Run to their end", "its last line", ended, lambda r: r["last"])
    parts += _section(
        "Stopped by a limit of CPU seconds, without an error", "its last line", stopped, lambda r: r["last"]
    )
    parts += _section("End with an error", "the error", failed, lambda r: (r["error"] or [r["last"]])[-1])
    return "\n".join([*parts, _TAIL])


def read(path: Path) -> list[dict[str, Any]]:
    """Read the records of a run.

    Raises:
        ValueError: a record lacks a key, or was made with versions that constraints.txt does not pin.
    """
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    records = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        record = json.loads(line)
        if missing := [key for key in KEYS if key not in record]:
            raise ValueError(f"expected {', '.join(missing)} in {path}, line {number}: run that script again")
        versions = {name: v.partition("+")[0] for name, v in record["versions"].items()}
        unpinned = {name: v for name, v in versions.items() if pins.get(name) != v}
        if unpinned or not versions:
            raise ValueError(
                f"expected versions that constraints.txt pins in {path}, line {number}, got {unpinned}: install these, "
                "and run that script again"
            )
        records.append({**{key: record[key] for key in KEYS}, "versions": versions})
    return records


def write(runs: list[Path]) -> None:
    """Write records and page. Later runs replace records of earlier ones.

    Raises:
        ValueError: there is no record, or see `read`.
    """
    records = {r["job"]: r for run in runs for r in read(run)}
    if not records:
        raise ValueError(f"expected records in {', '.join(map(str, runs)) or 'a file'}, got none: pass files of runs")
    lines = [
        without_folders(json.dumps(records[job], sort_keys=True, ensure_ascii=False)) + "\n" for job in sorted(records)
    ]
    RECORDS.write_text("".join(lines), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


def without_folders(text: str) -> str:
    """Return a text with an ellipsis in place of the folders of absolute paths, but for those of addresses."""
    return re.sub(r"(?<![\w:/.…])/(?:[^\s/'\"\\]+/)+", "…/", text)


def _section(title: str, heading: str, records: list[dict[str, Any]], text: Any) -> list[str]:
    """Return the lines of a table, or nothing without records."""
    if not records:
        return []
    rows = [f"| {_script(r)} | {_how(r)} | {r['cpu']:.1f} | {_line(text(r))} |" for r in records]
    return [f"## {title}", "", f"| script | run | CPU s | {heading} |", "|---|---|---:|---|", *rows, ""]


def _script(record: dict[str, Any]) -> str:
    """Return the name of a script as code, without its folder, unless two have that name."""
    name = re.sub(r"^.*/(?!\.)", "", record["job"].removesuffix(".ipynb"))
    name = f"FunctionalAPI/{name}" if "/FunctionalAPI/" in record["job"] else name
    return f"`{_cut(name, LONGEST_NAME)}`"


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _how(record: dict[str, Any]) -> str:
    return "shortened" if record["shortened"] or record["arguments"] else "as published"


def _line(text: str) -> str:
    """Return a printed line as code, without what changes from run to run."""
    text = re.sub(r" at 0x[0-9a-f]+", "", text).strip()
    text = _cut(re.sub(r"^FAILED cell\d+ \S+ s ", "", text), LONGEST).replace("|", " ").replace("`", "'")
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    write([Path(name) for name in sys.argv[1:]])
