"""``feedline audit LOG CORPUS``: show which sequences were in which step of a run, without reading data."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from feedline.cli.arguments import DEFAULT_CHUNK_SIZE, ChunkSize, CorpusPath, SchemaOption, Streams
from feedline.cli.console import Debug, Json, UsageError, print_json, print_table, stdout
from feedline.cli.corpus import open_path
from feedline.errors import DataError
from feedline.feed.audit import AuditedStep, LoggedFeed, audit_steps
from feedline.feed.composed.packed import Packed
from feedline.feed.packed_documents import PackedDocuments
from feedline.feed.protocol import Deserializer
from feedline.runs.fields import whole
from feedline.runs.log import read_log

_SHOWN_STEPS = 20
_SHOWN_IDS = 12


def audit(
    log: Annotated[Path, typer.Argument(help="Log of the run, as `JsonLines` writes it.")],
    path: CorpusPath,
    steps: Annotated[
        str | None, typer.Option(metavar="A:B", help="Steps A to B - 1 only, and list the sequences of each.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option(min=0, metavar="ID", help="List the steps that contain this sequence.")
    ] = None,
    document: Annotated[
        str | None,
        typer.Option(metavar="[NAME:]ID", help="List the steps that contain this document of a packed corpus."),
    ] = None,
    stream: Streams = None,
    schema: SchemaOption = "strict",
    chunk_size: ChunkSize = DEFAULT_CHUNK_SIZE,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compute from a run's log which sequences were in which step, and how often each corpus of a mixture was read."""
    low, high = _bounds(steps)
    records = read_records(log)
    with contextlib.closing(open_path(path, stream, chunk_size, schema).corpus) as corpus:
        names = getattr(corpus, "names", None)
        counts = np.zeros(len(names) if names else 1, np.int64)
        listed: list[AuditedStep] = []
        documents = PackedDocuments(corpus)
        has: dict[str, Callable[[AuditedStep], bool]] = {}
        if sequence is not None:
            has["sequence"] = lambda step: sequence in step.ids
        if document is not None:
            has["document"] = partial(_holds, documents, _document(document, corpus, names))
        sought = {"sequence": sequence, "document": document}
        where: dict[str, list[int]] = {what: [] for what in has}
        total = 0
        for step in audit_steps(corpus, records):
            if not (low <= step.step and (high is None or step.step < high)):
                continue
            total += 1
            numbers = step.sources if names and step.sources is not None else np.zeros(len(step.ids), np.int64)
            counts += np.bincount(numbers, minlength=len(counts))
            if steps is not None:
                listed.append(step)
            for what, is_in in has.items():
                if is_in(step):
                    where[what].append(step.step)
        rows_of = [documents.of(step.ids, step.chunks) for step in listed]
        sources = _sources(corpus, names, counts)
    first = max(low, records[0].step)
    result: dict[str, Any] = {"log": str(log), "path": corpus.name, "first_step": first, "steps": total}
    result["sources"] = sources
    result |= {what: {"id": sought[what], "steps": in_steps} for what, in_steps in where.items()}
    if steps is not None:
        result["listed"] = [
            {"step": s.step, "samples": s.samples, "ids": s.ids.tolist()}
            | ({} if s.sources is None or not names else {"sources": [names[k] for k in s.sources.tolist()]})
            | ({} if rows is None else {"documents": rows.by_row()})
            for s, rows in zip(listed, rows_of, strict=True)
        ]
    if json:
        print_json(result)
        return
    console = stdout()
    span = f"steps {first} to {first + total - 1}" if total else "no steps"
    console.print(f"{span}, verified by the log's fingerprints")
    rows = [[name, f"{r['delivered']:,}", f"{r['sequences']:,}", f"{r['times']:.3f}"] for name, r in sources.items()]
    print_table(["corpus", "delivered", "sequences", "times"], rows)
    for what, in_steps in where.items():
        console.print(f"{what} {sought[what]} was in steps: {', '.join(map(str, in_steps)) or 'none'}")
    for step in listed[:_SHOWN_STEPS]:
        console.print(_line(step, names))
    if len(listed) > _SHOWN_STEPS:
        console.print(f"... ({len(listed)} steps; --json lists all)")


def read_records(log: Path) -> list[LoggedFeed]:
    """Return the records of the feed in a log, by steps. Of a part that was trained again, only the last time.

    Raises:
        DataError: the log is damaged, contradicts itself, or has no records of a feed.
    """
    lines: list[_FeedLine] = []

    def keep(line: dict[str, Any]) -> None:
        if line.get("feed") is not None:
            lines.append(_FeedLine(line["event"], line["samples"], _read_logged(line["feed"])))

    read_log(log, keep)
    records: list[_FeedLine] = []
    for line in lines:
        step = line.feed.step
        again = bisect_left(records, step, key=lambda record: record.feed.step)
        if step or line.samples:  # otherwise a new run begins, in the same log
            for before in records[max(0, again - 1) :]:
                _check_order(log, before, line)
        records[again:] = [line]
    if len(records) < 2:
        raise DataError(
            f"expected at least two records of the feed in a log, got {len(records)}",
            path=str(log),
            hint="`JsonLines` writes them at the start of a run and with its progress, if a MinibatchSource feeds it. "
            "In a loop of your own, call `feedline.runs.log_feed`",
        )
    return [line.feed for line in records]


class _FeedLine(NamedTuple):
    """A line of a log with a record of the feed."""

    event: str
    samples: int
    feed: LoggedFeed


def _check_order(log: Path, before: _FeedLine, line: _FeedLine) -> None:
    """Check that steps and samples of two lines of a run grow together.

    Raises:
        DataError: one has more steps, but fewer samples, or as many steps, but other samples.
    """
    steps = before.feed.step, line.feed.step
    for what, samples in (
        ("samples", (before.samples, line.samples)),
        ("samples of the state", (before.feed.state["samples"], line.feed.state["samples"])),
    ):
        grows = (samples[1] - samples[0]) * (steps[1] - steps[0]) >= 0
        if not grows or (steps[0] == steps[1] and samples[0] != samples[1]):
            raise DataError(
                f"expected {what} that grow with the steps, got {samples[0]} at step {steps[0]} ({before.event!r}), "
                f"but {samples[1]} at step {steps[1]} ({line.event!r})",
                path=str(log),
                hint="a process that resumes logs the step and the samples at which it continues; "
                "`feedline.runs.log_feed` writes such lines",
            )


def _read_logged(feed: Any) -> LoggedFeed:
    state = feed["state"]
    if not isinstance(state, dict):
        raise ValueError(f"expected a state, got {state!r:.40}")
    whole(state.get("samples"), "samples of the state")
    return LoggedFeed(whole(feed["step"], "step"), whole(feed["size"], "size"), state)


def _bounds(steps: str | None) -> tuple[int, int | None]:
    if steps is None:
        return 0, None
    first, colon, last = steps.partition(":")
    if not (colon and (first or "0").isdigit() and (not last or last.isdigit())):
        raise UsageError(f"expected --steps A:B, got {steps!r}")
    return int(first or 0), int(last) if last else None


def _document(text: str, corpus: Deserializer, names: Any) -> tuple[int | None, int]:
    """Return the number of the corpus, if there are several, and the ordinal of the document in it."""
    name, _, ordinal = text.rpartition(":")
    if not ordinal.isdigit():
        raise UsageError(f"expected --document ID, or NAME:ID for a corpus of a mixture, got {text!r}")
    if not names:
        part, number = corpus, None
        if name:
            raise UsageError(f"expected --document ID without a name, as {corpus.name} is not a mixture, got {text!r}")
    elif name in names:
        number = names.index(name)
        part = corpus.parts[number]  # type: ignore[attr-defined]  # a mixture has them
    else:
        raise UsageError(f"expected --document NAME:ID with NAME one of {', '.join(names)}, got {text!r}")
    if not isinstance(part, Packed):
        raise UsageError(f"expected a packed corpus for --document, got {part.name}; --sequence finds sequences")
    return number, int(ordinal)


def _holds(documents: PackedDocuments, sought: tuple[int | None, int], step: AuditedStep) -> bool:
    rows = documents.of(step.ids, step.chunks)
    assert rows is not None  # the corpus is packed, or one of its parts is
    number, ordinal = sought
    matches = rows.ordinals == ordinal
    if number is not None:
        assert step.sources is not None
        matches &= np.repeat(step.sources == number, np.diff(rows.bounds))
    return bool(matches.any())


def _sources(corpus: Deserializer, names: Any, counts: Any) -> dict[str, dict[str, Any]]:
    """Return the figures of each corpus of a mixture, or of the corpus itself."""
    parts = corpus.parts if names else [corpus]  # type: ignore[attr-defined]  # a mixture has them
    delivered = {}
    for name, part, count in zip(names or [corpus.name], parts, counts.tolist(), strict=True):
        sequences = sum(info.sequences for info in part.chunks())
        delivered[name] = {"delivered": count, "sequences": sequences, "times": count / sequences}
    return delivered


def _line(step: AuditedStep, names: Any) -> str:
    shown = list(map(str, step.ids.tolist()))
    if names and step.sources is not None:
        shown = [f"{names[k]}:{i}" for k, i in zip(step.sources.tolist(), shown, strict=True)]
    suffix = f" ... ({len(shown)})" if len(shown) > _SHOWN_IDS else ""
    return f"step {step.step}: {' '.join(shown[:_SHOWN_IDS])}{suffix}"
