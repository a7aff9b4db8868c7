"""The page of stills: a card for each of some sequences, with a still of each stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline._version import __version__
from feedline.cli.bench_loader import call_factory
from feedline.cli.console import show_count, use_option_names
from feedline.cli.state.words import facts_of
from feedline.cli.stills import sampled
from feedline.cli.stills.drawn import Marks, drawn, heat, spans, spectrogram
from feedline.cli.stills.media import decoded, share
from feedline.data import Schema, Stream, Value
from feedline.data.schema import PRESENT
from feedline.errors import DataError
from feedline.feed.composed.lm_batches import Unpacking
from feedline.feed.composed.windows.time_windows import TimeWindows
from feedline.feed.files.media_address import MediaAddress
from feedline.feed.protocol import Deserializer, finish_of
from feedline.feed.remote.address_text import is_address
from feedline.feed.source import MinibatchSource
from feedline.feed.transforms import DrawKeys
from feedline.runs import page

SEGMENT = "segment"
_OF_ROWS = frozenset({SEGMENT, "positions", "labels", "cu_seqlens"})  # of packed rows, which spans show
_OF_RATES = (f"_{SEGMENT}", "_cu_seqlens")  # ends of such names, where streams have their own lengths


class Sequence(NamedTuple):
    """A sequence on the page.

    Attributes:
        ordinal: number in the corpus.
        values: its streams.
        segments: what part of its recording it is, by stream, which has the whole recording.
        error: why it is unreadable, or None.
    """

    ordinal: int
    values: Mapping[str, Value] = {}
    segments: Mapping[str, MediaAddress] = {}
    error: DataError | None = None


def is_factory(path: str) -> bool:
    """Return whether the argument of a command is ``module:factory``, and not a path or an address."""
    return ":" in path and not is_address(path) and not Path(path).exists()


def made_by(spec: str) -> Deserializer | MinibatchSource:
    """Return the corpus or the source that ``module:factory`` makes.

    Raises:
        DataError: it makes something else, or does not exist.
    """
    target = call_factory("PATH", spec)
    if not isinstance(target, (Deserializer, MinibatchSource)):
        raise DataError(f"expected a corpus or a MinibatchSource from {spec}, got {type(target).__name__}")
    return target


def write_stills(target: Deserializer | MinibatchSource, count: int, out: Path) -> dict[str, Any]:
    """Write a page with some sequences of a corpus, or with the first ones that a source delivers.

    Returns:
        ``page``, its path, and the numbers of ``sequences`` and ``unreadable`` ones.
    """
    if isinstance(target, MinibatchSource):
        corpus, saved = target.corpus, target.state_dict()
        sequences = _delivered(target, count)
        lead, rows = _of_source(facts_of(saved), len(sequences))
        rows.append(("transforms", _changes(corpus.schema, target.schema)))
    else:
        corpus, sequences, rows = target, _selected(target, count), [("transforms", "none")]
        total = sum(info.sequences for info in corpus.chunks())
        spaced = "" if len(sequences) == total else ", evenly spaced in the corpus"
        lead = f"{sampled.share(len(sequences), total)}{spaced}, without transforms."
    rows = [
        ("corpus", corpus.name),
        ("sequences", sampled.numbers([sequence.ordinal for sequence in sequences])),
        *rows,
    ]
    cards = []
    for sequence in sequences:
        if sequence.error is not None:
            body = f'<p class="error">{escape(use_option_names(str(sequence.error)))}</p>'
        else:
            body = _stills(corpus, sequence)
        cards.append(f'<li class="card"><h2>sequence {show_count(sequence.ordinal)}</h2>{body}</li>')
    out.write_text(_page(corpus.name, sampled.lead(lead, rows), cards), encoding="utf-8", errors="backslashreplace")
    return {
        "page": str(out),
        "sequences": len(cards),
        "unreadable": sum(each.error is not None for each in sequences),
    }


def _of_source(saved: Mapping[str, Any], count: int) -> tuple[str, list[tuple[str, str]]]:
    """Return a sentence and rows about the sequences that a source delivers from a state on."""
    facts, state = saved["facts"], saved["state"]
    of_all = f" of {show_count(state['sequences'])}" if state.get("sequences") else ""
    at_start = not state.get("sweep") and not state.get("sequence")
    which, place = ("first", "") if at_start else ("next", f" after {facts['place']}")
    numbered = f"The {which} {show_count(count)}{of_all} sequences"
    sentence = f"{numbered} that a source with seed {facts['seed']} delivers{place}."
    shuffled = f", shuffled {facts['shuffled']}".replace("shuffled no", "not shuffled") if "shuffled" in facts else ""
    return sentence, [("order", f"{facts['order']}, seed {facts['seed']}{shuffled}")]


def _changes(before: Schema, after: Schema) -> str:
    """Return which streams transforms change or add, in words."""
    forms = [{name: _form(stream) for name, stream in schema.items()} for schema in (before, after)]
    texts = [
        f"{name} from {forms[0][name]} to {form}" if name in forms[0] else f"{name} added, {form}"
        for name, form in forms[1].items()
        if form != forms[0].get(name)
    ]
    return "; ".join(texts) or "none that change the form of a stream"


def _form(stream: Stream) -> str:
    return f"{stream.dtype.name} {stream.shape}" if stream.shape else stream.dtype.name


def _selected(corpus: Deserializer, count: int) -> list[Sequence]:
    """Return sequences spread over a corpus, with sounds and frames decoded."""
    sequences = sum(info.sequences for info in corpus.chunks())
    ordinals = sampled.evenly_spaced(count, sequences)
    chunk = corpus.select(ordinals)
    good = np.array([i for i in range(len(ordinals)) if i not in chunk.errors], np.int64)
    values: Mapping[str, Value] = chunk.take(good).values
    schema = corpus.schema
    if (finish := finish_of(corpus)) is not None:
        keys = DrawKeys(0, np.zeros(len(good), np.int64), ordinals[good], 0)
        values, schema = finish.run_all(schema, dict(values), keys).values, finish.schema(schema)
    media = decoded(schema, values, len(good))
    shown = {i: Sequence(int(ordinals[i]), error=error) for i, error in chunk.errors.items()}
    for k, (i, streams) in enumerate(zip(good.tolist(), _each(media.values, len(good)), strict=True)):
        segments = {name: addresses[k] for name, addresses in media.segments.items()}
        shown[i] = Sequence(int(ordinals[i]), streams, segments, media.errors.get(k))
    return [shown[i] for i in range(len(ordinals))]


def _delivered(source: MinibatchSource, count: int) -> list[Sequence]:
    """Return the first sequences that a source delivers."""
    sequences: list[Sequence] = []
    while len(sequences) < count and (minibatch := source.next_minibatch(1)):
        streams = _each(minibatch, minibatch.num_sequences)
        sequences += [Sequence(*pair) for pair in zip(minibatch.ids.tolist(), streams, strict=True)]
    return sequences[:count]


def _each(values: Mapping[str, Value], count: int) -> Iterator[dict[str, Value]]:
    """Yield the streams of each sequence."""
    for i in range(count):
        # Of streams that belong to the minibatch as a whole, sequences have no part.
        yield {name: value.slice(i, i + 1) for name, value in values.items() if value.num_sequences == count}


def _stills(corpus: Deserializer, sequence: Sequence) -> str:
    values = sequence.values
    offsets = _offsets(corpus)
    packed = isinstance(finish_of(corpus), Unpacking)
    parts = []
    for name, value in values.items():
        if (packed and (name in _OF_ROWS or name.endswith(_OF_RATES))) or (
            name.removesuffix(PRESENT) in offsets and name not in offsets
        ):
            continue
        mask = values.get(name + PRESENT) if name in offsets else None
        marks = Marks(offsets.get(name, ()), None if mask is None else np.asarray(mask.dense().rows).ravel())
        of_stream = values.get(f"{name}_{SEGMENT}", values.get(SEGMENT)) if packed else None
        segments = None if of_stream is None else np.asarray(of_stream.dense().rows).ravel()
        if name in sequence.segments:
            still = _sound(np.asarray(value.dense().rows), sequence.segments[name])
        elif segments is not None and value.num_samples == len(segments):
            still = spans(segments, name)
        else:
            still = drawn(value, marks)
        parts.append(f"<h3>{escape(name)}</h3>{still}")
    return "".join(parts)


def _sound(samples: NDArray[np.float32], address: MediaAddress) -> str:
    """Return the spectrogram of a recording, with the segment that the address has."""
    return heat(spectrogram(samples), str(address), share(address, len(samples)))


def _offsets(corpus: Any) -> dict[str, tuple[float, ...]]:
    """Return the offsets of windows, if a corpus has them."""
    while corpus is not None and not isinstance(corpus, TimeWindows):
        corpus = getattr(corpus, "corpus", None)
    return {} if corpus is None else corpus.windows


def _page(name: str, lead: str, cards: list[str]) -> str:
    style = files(__package__).joinpath("sheet.css").read_text("utf-8")
    items = "\n".join(cards)
    body = f"""<header><h1>{escape(name)}</h1>
{lead}</header>
<main><ol class="stills">
{items}
</ol></main>
<footer>Made by feedline {escape(__version__)}.</footer>"""
    return page.document(f"Stills of {name}", body, style, charts=False)
