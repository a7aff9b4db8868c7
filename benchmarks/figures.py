"""The table of docs/explanation/figures.md, from committed results. ``python -m benchmarks.figures`` writes it.

A row names a question of `benchmarks`. Its figures are those of the newest committed result that answers it, so they
stand in one place. A test compares the page with them.
"""

from __future__ import annotations

import fnmatch
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers.table import markdown

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "figures.md"


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        what: the first cell.
        question: a question of the results, or a pattern of several, of which the least and the largest figure stand.
        compared: the last cell. ``{peer}`` is our ratio to a peer, above 1 where we are faster, ``{=peer}`` its figure.
        unit: the unit of both, where the result's own says too little.
    """

    what: str
    question: str
    compared: str
    unit: str = ""


ROWS = (
    Row(
        "shuffled, 256 x 784 floats, from a 4 GB store",
        "shuffled dense minibatches of 256",
        "{torch DataLoader} torch `DataLoader`, {np.take loop} bare `np.take`",
    ),
    Row("… not in memory: windows of 64 MiB", "store evicted, in windows of 64 MiB", "{*bare reads*} bare reads"),
    Row("… not in memory, in order", "store evicted, in order", "{*bare reads*} bare reads"),
    Row("… not in memory, shuffled as a whole", "store evicted, in a whole shuffle", "{*bare reads*} bare reads"),
    Row(
        "… in order, on a disk of 200 MB/s and 2,000 reads/s",
        "store evicted, in order, on a disk of 200 MB/s and 2,000 reads/s",
        "{*bare reads*} bare reads",
    ),
    Row(
        "… in windows of 64 MiB, on that disk",
        "store evicted, in windows of 64 MiB, on a disk of 200 MB/s and 2,000 reads/s",
        "{*bare reads*} bare reads",
    ),
    Row(
        "… shuffled as a whole, on that disk",
        "store evicted, in a whole shuffle, on a disk of 200 MB/s and 2,000 reads/s",
        "{*bare reads*} bare reads",
    ),
    Row(
        "from a dataset that HF `datasets` saved",
        "a dataset of Hugging Face's in place, shuffled",
        "{datasets, torch format} `datasets`, {feedline's store} our store",
    ),
    Row("JSON Lines of 100 numbers", "JSON Lines of 100 numbers", "{pyarrow} pyarrow", "MB/s of text"),
    Row(
        "… in Zstandard",
        "JSON Lines of 100 numbers, in Zstandard",
        "{in sequence} unpacking, then parsing",
        "MB/s of text",
    ),
    Row(
        "Parquet with 2 % nulls in one column of ten, filled",
        "Parquet, 10 columns, 2 % nulls in one column, filled",
        "{no column} without nulls",
    ),
    Row(
        "`fl.statistics` of 5 million rows x 10 columns",
        "statistics of 5 million rows x 10 columns, beside *",
        "{reading} reading them, {pandas} pandas",
    ),
    Row(
        "a minibatch of 32 x 16 floats, as a torch tensor",
        "overhead a minibatch, 32 x 16 floats, to torch tensors",
        "{torch DataLoader} torch `DataLoader`",
    ),
    Row("`DataLoader`, items of 6 µs, batch 32, 2 workers", "tiny items, 2 workers", "{torch DataLoader} torch"),
    Row(
        "… items without work, no workers, over the bare loop",
        "items without work, 0 workers: time over the bare loop",
        "{torch DataLoader} torch",
    ),
    Row(
        "… over a `TensorDataset`",
        "TensorDataset, 784 floats, batch 256, shuffled",
        "{torch DataLoader} torch, {np.take} bare `np.take`",
    ),
    Row("… 38 MB batches from 2 workers", "bytes from 2 workers, batches of 38.5 MB", "{torch DataLoader} torch"),
    Row(
        "… the first batch from 2 workers",
        "first batch, 2 workers, default start methods",
        "torch takes {=torch DataLoader}",
    ),
    Row("… the pause between epochs", "gap between epochs", "torch takes {=torch DataLoader, persistent}"),
    Row(
        "… resuming at 90 % of 10 M samples",
        "resume at 90 % of 10,000,000 samples, 0 workers",
        "torchdata takes {=torchdata StatefulDataLoader}",
    ),
    Row(
        "a session's step, for a tiny model",
        "a session's step over a loop's: a tiny MLP, 8 x 16, width 4",
        "than the loop by hand",
        "us more",
    ),
    Row("… of about 3 ms", "a session's step over a loop's: an *", "{a torch loop} the loop by hand"),
    Row(
        "CNTK's networks: an LSTM tagger",
        "training through CNTK's names, tagger: *",
        "{theirs} torch by hand",
    ),
    Row("… an LSTM of 20", "training through CNTK's names, classifier: *", "{theirs} torch by hand"),
    Row(
        "a step of 2 processes, 25.6 M floats, through a store",
        "step of 2 processes, 161 tensors, backward of * ms, through_store",
        "{DDP} torch's DDP",
    ),
    Row(
        "… with `data_parallel`",
        "step of 2 processes, 161 tensors, backward of * ms, data_parallel",
        "{DDP} torch's DDP",
    ),
    Row(
        "`pushpull` of the same in 161 tensors, 4 values a key",
        "pushpull of 161 tensors, 25.6 M floats, 4 devices*",
        "{flat buffers} one flat buffer, {loop} a loop",
    ),
    Row("… over 2 processes", "161 tensors, pushpull, 2 processes", "{flat gloo all_reduce} flat gloo"),
    Row(
        "… over 2 workers, 2 servers",
        "pushpull of 161 tensors, 25.6 M floats, 2 workers, 2 servers",
        "{the same bytes over Ray} Ray alone",
    ),
    Row(
        "Adam, 25.6 M numbers in 161 tensors, one thread",
        "an update by adam, 25.6 M numbers in 161 tensors",
        "{torch.optim, fused} torch fused",
    ),
    Row("a checkpoint", "a checkpoint of 100 M parameters", "{write} `write`+fsync"),
    Row("token sequences, packed", "token sequences, packed (kernel)", "{numpy} NumPy"),
    Row(
        "… padded with a mask",
        "token sequences, padded with mask (kernel)",
        "{torch pad_sequence} `pad_sequence`",
    ),
    Row("… packed, with order and cuts", "tokens end to end, packed", "{numpy} NumPy without them"),
    Row(
        "… padded, with order and cuts",
        "tokens end to end, padded with mask",
        "{torch pad_sequence} `pad_sequence` without them",
    ),
    Row("CTF text to arrays, a core: integers", "CTF parse, MNIST-like ints", "{memcpy} memcpy"),
    Row("… floats", "CTF parse, 6-8 digit floats", "{memcpy} memcpy"),
    Row("… one-hot", "CTF parse, one-hot sequences", "{memcpy} memcpy"),
    Row("… row by row", "CTF parse by rows, *", "{load_svmlight_file} scikit-learn's svmlight"),
    Row(
        "… minibatches of 256, first pass, integers",
        "CTF end to end, MNIST-like ints",
        "{parse} parsing",
    ),
    Row(
        "… minibatches of 256, first pass, one-hot",
        "CTF end to end, one-hot sequences",
        "{parse} parsing",
    ),
    Row(
        "first minibatch after a restore at 90 % of 10^5 to 10^9 sequences",
        "restore at 90 % of 10^*",
        "",
    ),
    Row("private memory while reading 4 GB of CTF", "private memory, 4.* GB of CTF", "two windows take 596 MB"),
    Row("… a 4 GB store", "private memory, 4.* GB store", ""),
)


def newest(reports: Iterable[dict[str, Any]]) -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """Return the answers of each question and their date, from the last report that has it.

    Args:
        reports: reports of `benchmarks`, oldest first.
    """
    newest: dict[str, tuple[str, list[dict[str, Any]]]] = {}
    for report in reports:
        of_report: dict[str, tuple[str, list[dict[str, Any]]]] = {}
        for answer in report["answers"]:
            of_report.setdefault(answer["question"], (report["date"], []))[1].append(answer)
        newest |= of_report
    return newest


def table(reports: Sequence[dict[str, Any]], rows: Sequence[Row] = ROWS) -> list[str]:
    """Return the table, a line for each row, and below it the days of its results.

    Raises:
        ValueError: no report answers the question of a row, or compares it with a peer that the row names.
    """
    answers = newest(reports)
    lines = [["what", "feedline", "compared with"]]
    days = set()
    for row in rows:
        of_row = [answers[question] for question in answers if fnmatch.fnmatchcase(question, row.question)]
        if not of_row:
            raise ValueError(f"expected a committed result with the question {row.question!r}, got none")
        days |= {day for day, _ in of_row}
        matches = [answer for _, each in of_row for answer in each]
        unit = row.unit or matches[0]["unit"]
        figure = span([each[0]["ours"] for _, each in of_row], unit)
        lines.append([row.what, figure, re.sub(r"\{(=?)([^}]+)\}", _comparison(row, matches, unit), row.compared)])
    return [*markdown(lines), "", f"Measured on {', '.join(sorted(days))} ([results](../../benchmarks/results))."]


def _comparison(row: Row, answers: Sequence[dict[str, Any]], unit: str) -> Any:
    """Return the function that replaces a peer in a template by our ratio to it, or by its figure."""

    def figure(match: re.Match[str]) -> str:
        key = "peer_value" if match[1] else "ratio"
        values = [each[key] for each in answers if fnmatch.fnmatchcase(each["peer"], match[2])]
        values = [value for value in values if value is not None]
        if not values:
            peers = sorted({each["peer"] for each in answers})
            raise ValueError(f"expected {row.question!r} to be compared with {match[2]!r}, got {peers}")
        return span(values, unit) if match[1] else span(values, "x")

    return figure


def span(values: Sequence[float], unit: str) -> str:
    """Return a quantity, or the least and the largest of several, with two significant digits.

    Args:
        values: the quantities.
        unit: unit of the results, or ``"x"`` for a ratio.
    """
    unit = re.sub("^us", "µs", unit.removesuffix(" (wall)"))
    low, high = min(values), max(values)
    if high >= 1e6:
        low, high, unit = low / 1e6, high / 1e6, f"M {unit}"
    texts = dict.fromkeys((_digits(low), _digits(high)))
    if unit == "x":
        return " to ".join(f"{text}x" for text in texts)
    return f"{' to '.join(texts)} {unit}"


def _digits(value: float) -> str:
    decimals = 0 if value == 0 else max(1 - math.floor(math.log10(abs(float(f"{value:.1e}")))), 0)
    return f"{float(f'{value:.1e}'):,.{decimals}f}"


def page(text: str, reports: Sequence[dict[str, Any]]) -> str:
    """Return the page with the table of these reports in the place of its own."""
    lines = text.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("|"))
    last = next(at for at, line in enumerate(lines) if line.startswith("Measured on "))
    return "\n".join([*lines[:first], *table(reports), *lines[last + 1 :]]) + "\n"


def committed() -> list[dict[str, Any]]:
    """Return the committed reports, oldest first."""
    paths = sorted((ROOT / "benchmarks" / "results").glob("*.json"), key=lambda path: path.name)
    reports = [json.loads(path.read_text()) for path in paths if not path.stem.endswith(("-peers", "-quick"))]
    return sorted(reports, key=lambda report: report["date"])


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), committed()), encoding="utf-8")
