"""``feedline inspect --pictures``: pictures of a corpus next to the samples of a source's steps, as one page."""

from __future__ import annotations

import ast
import io
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native, images
from feedline.cli.console import UsageError, progress, show_bytes, show_count, use_option_names
from feedline.cli.corpus import Opened
from feedline.cli.picture_page import Box, Shown, View, html
from feedline.cli.stills import sampled
from feedline.data import Chunk, Value
from feedline.data.value import BytesValue, SparseValue
from feedline.errors import DataError
from feedline.feed.protocol import Deserializer
from feedline.feed.transforms import DrawKeys
from feedline.images import decoders
from feedline.images.decode import views_of
from feedline.images.step import CROP, FLIP, PAD, RESIZE

DEFAULT_STEPS = ("RandomResizedCrop(224)", "Flip(0.5)")
_LOOKED_AT = 16  # sequences that are looked at to find the stream of pictures
_AT_ONCE = 64
_SIDE = 640  # of an original on the page, at most
_WORDS, _NUMBERS = 60, 6  # of other streams that are shown
_FORMATS = {1: "JPEG", 2: "PNG"}
_EXIF_ORIENTATION = 0x0112
_FORMAT, _WIDTH, _HEIGHT, _COMPONENTS, _ORIENTATION = range(5)

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PageOptions:
    """Options of the page.

    Attributes:
        count: largest number of pictures.
        views: number of augmented samples of each.
        steps: steps as typed. None means `DEFAULT_STEPS`.
        seed: seed of the steps.
    """

    count: int
    views: int
    steps: Sequence[str]
    seed: int


def write_page(opened: Opened, options: PageOptions, out: Path) -> dict[str, Any]:
    """Write the page to ``out``, and return its content, in JSON types.

    Raises:
        UsageError: a step is wrong, or no stream holds encoded pictures.
    """
    steps = parse_steps(options.steps or DEFAULT_STEPS)
    corpus = opened.corpus
    sequences = sum(info.sequences for info in corpus.chunks())
    name = picture_stream(corpus, sequences)
    if name is None:
        streams = ", ".join(f"{name}: {stream}" for name, stream in corpus.schema.items())
        raise UsageError(f"expected a stream of encoded pictures in {corpus.name} for --pictures, got {streams}")
    # Values of Normalize are no colours, so pictures are shown without it.
    decode = images.Decode(name, *(step for step in steps if not isinstance(step, images.Normalize)))
    ordinals = sampled.evenly_spaced(options.count, sequences)
    shown: list[Shown] = []
    tally = _Tally()
    with progress("decoding", "sequences") as show:
        for low in range(0, len(ordinals), _AT_ONCE):
            part = ordinals[low : low + _AT_ONCE]
            shown += _some(corpus, name, decode, part, options, tally)
            show(low + len(part), len(ordinals))
    page = _page(opened, options, ordinals.tolist(), sequences, shown, tally)
    # Names from data may contain undecodable bytes, as file names do. They are shown as escapes.
    out.write_text(page, encoding="utf-8", errors="backslashreplace")
    return {
        "page": str(out),
        "bytes": out.stat().st_size,
        "stream": name,
        "pictures": len(shown),
        "unreadable": sum(picture.error is not None for picture in shown),
        "formats": dict(tally.formats),
        "steps": list(options.steps or DEFAULT_STEPS),
        "decoders": decoding(),
    }


def parse_steps(texts: Iterable[str]) -> list[images.PictureStep]:
    """Parse steps such as ``RandomResizedCrop(224, scale=(0.5, 1))``: names of `feedline.images`, and literals.

    Views have steps of their own: ``MultiView([[], Flip(1.0)])``.

    Raises:
        UsageError: a text is no step.
    """
    return [_step(text) for text in texts]


def _step(text: str) -> images.PictureStep:
    kinds = {name: kind for name in images.__all__ if _is_step(kind := getattr(images, name))}
    expected = f"expected --step NAME(ARGUMENTS) of {', '.join(sorted(kinds))}, got {text!r}"
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        call = _read(ast.Call(tree, [], []) if isinstance(tree, ast.Name) else tree, kinds)
    except (SyntaxError, TypeError, ValueError):
        call = None
    if not isinstance(call, partial):
        raise UsageError(expected)
    try:
        step: images.PictureStep = _make(call)
        return step
    except (TypeError, ValueError) as error:
        raise UsageError(f"{error}, in --step {text!r}") from None


def _read(node: ast.expr, kinds: dict[str, Callable[..., images.PictureStep]]) -> Any:
    """Read a literal, a list, or a call of one of the kinds, which `_make` calls later.

    Raises:
        TypeError, ValueError: it is none of these.
    """
    if isinstance(node, ast.List):
        return [_read(item, kinds) for item in node.elts]
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in kinds:
        return ast.literal_eval(node)
    named = {str(word.arg): _read(word.value, kinds) for word in node.keywords}
    return partial(kinds[node.func.id], *(_read(item, kinds) for item in node.args), **named)


def _make(argument: Any) -> Any:
    """Call the steps that were typed in arguments, at any depth."""
    if isinstance(argument, partial):
        named = {name: _make(item) for name, item in argument.keywords.items()}
        return argument.func(*map(_make, argument.args), **named)
    return [_make(item) for item in argument] if isinstance(argument, list) else argument


def _is_step(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, images.PictureStep) and kind is not images.PictureStep


def picture_stream(corpus: Deserializer, sequences: int) -> str | None:
    """Return the first stream in which most of the first sequences begin as pictures do. None if there is none."""
    if sequences == 0 or not any(stream.is_bytes and not stream.is_text for stream in corpus.schema.values()):
        return None
    chunk = corpus.select(np.arange(min(_LOOKED_AT, sequences)))
    good = [i for i in range(min(_LOOKED_AT, sequences)) if i not in chunk.errors]
    for name, value in chunk.values.items():
        if not isinstance(value, BytesValue) or value.text or not value.one_sample_each:
            continue
        if np.count_nonzero(headers(value)[good, _FORMAT]) * 2 > len(good):
            return name
    return None


def decoding() -> dict[str, str]:
    """Return the decoder that runs, by format."""
    return dict(part.split(": ", 1) for part in decoders.path().split("; "))


def headers(value: BytesValue) -> NDArray[np.int32]:
    """Return `_native.picture_headers` of a value with one sample a sequence."""
    return _native.picture_headers(np.ascontiguousarray(value.data), np.ascontiguousarray(value.bounds))


def shown_sizes(sizes: Ints) -> str:
    """Format sizes (n, 2): ``40 × 30``, or the range of each side, ``30 to 64 × 30 to 60``."""
    ends = zip(sizes.min(0).tolist(), sizes.max(0).tolist(), strict=True)
    return " × ".join(str(low) if low == high else f"{low} to {high}" for low, high in ends)


def looked_at(corpus: Deserializer, name: str, sequences: int) -> dict[str, Any]:
    """Return formats and upright sizes from the headers of some pictures, spread over a corpus.

    Returns:
        ``looked_at``, their number, ``formats``, number by name, and ``sizes``, (width, height) of each with a known
        header.
    """
    ordinals = sampled.evenly_spaced(_AT_ONCE, sequences)
    chunk = corpus.select(ordinals)
    value = chunk.values[name]
    assert isinstance(value, BytesValue)
    heads = headers(value)[[i for i in range(len(ordinals)) if i not in chunk.errors]].astype(np.int64)
    formats = Counter(_FORMATS.get(kind, "other") for kind in heads[:, _FORMAT].tolist())
    readable = heads[heads[:, _FORMAT] > 0]
    sizes = np.where(readable[:, [_ORIENTATION]] >= 5, readable[:, [_HEIGHT, _WIDTH]], readable[:, [_WIDTH, _HEIGHT]])
    return {"looked_at": len(ordinals), "formats": dict(formats.most_common()), "sizes": sizes.tolist()}


# ---- pictures ------------------------------------------------------------------------------------------------


class _Tally:
    """Figures over all pictures."""

    def __init__(self) -> None:
        self.formats: Counter[str] = Counter()
        self.sizes: list[tuple[int, int]] = []
        self.nbytes: list[int] = []
        self.turned = 0
        self.shape: tuple[int, ...] = ()


def _some(
    corpus: Deserializer, name: str, decode: images.Decode, ordinals: Ints, options: PageOptions, tally: _Tally
) -> list[Shown]:
    chunk = corpus.select(ordinals)
    value = chunk.values[name]
    assert isinstance(value, BytesValue)
    heads = headers(value).astype(np.int64)
    errors: dict[int, DataError] = dict(chunk.errors)
    views: list[list[View]] = [[] for _ in ordinals]
    good = np.array([i for i in range(len(ordinals)) if i not in errors], np.int64)
    contents = [value.data[a:b].tobytes() for a, b in itertools.pairwise(value.bounds.tolist())]
    originals = [None if i in errors else _original(content) for i, content in enumerate(contents)]
    sizes = np.where(heads[:, [_ORIENTATION]] >= 5, heads[:, [_HEIGHT, _WIDTH]], heads[:, [_WIDTH, _HEIGHT]])
    for i, original in enumerate(originals):
        if original is not None:
            sizes[i] = original.width, original.height
    numbered, stacked, _ = views_of(decode.steps)
    for sweep in range(options.views):
        sweeps = np.full(len(good), sweep, np.int64)
        result = decode.run_all(
            corpus.schema,
            {stream: column.select(good) for stream, column in chunk.values.items()},
            DrawKeys(options.seed, sweeps, ordinals[good], stage=0),
        )
        errors |= {int(good[i]): error for i, error in result.errors.items()}
        rows = np.asarray(result.values[name].dense().rows)
        tally.shape = rows.shape[1:]
        decoded = np.array([k for k in range(len(good)) if k not in result.errors], np.int64)
        which = good[decoded]
        for v, steps in enumerate(numbered):
            keys = DrawKeys(options.seed, sweeps[decoded], ordinals[which], stage=0)
            boxes = trace(steps, sizes[which], keys)
            samples = rows[decoded, v] if stacked else rows[decoded]
            for i, pixels, box in zip(which.tolist(), samples, boxes, strict=True):
                views[i].append(View(sweep, _png(pixels), box, _part(v) if stacked else ""))
    shown = []
    for i, ordinal in enumerate(ordinals.tolist()):
        error, original = errors.get(i), originals[i]
        facts = [] if i in chunk.errors else [_summary(contents[i], heads[i], original, tally)]
        title, other_facts = _labels(corpus, chunk, name, i)
        where = f"sequence {show_count(ordinal)}"
        facts += [*other_facts, *([where] if title else [])]
        jpeg = None if original is None else original.jpeg
        width, height = sizes[i].tolist()
        samples_of_it = views[i] if error is None else ()
        reason = None if error is None else use_option_names(str(error))
        shown.append(Shown(title or where, facts, jpeg, width, height, samples_of_it, reason))
    return shown


def _part(view: int) -> str:
    """Return the name of a view: a, b, c."""
    return chr(ord("a") + view) if view < 26 else f".{view}"


def trace(steps: Sequence[tuple[int, images.PictureStep]], sizes: Ints, keys: DrawKeys) -> list[Box]:
    """Return the boxes that steps, each with the key of its draws, cut from pictures of sizes (n, 2): width, height.

    Steps plan crops, sizes, flips and borders one after the other. Followed backwards, the corners of the result are
    places in the picture.
    """
    n = len(sizes)
    start = sizes.astype(np.float64).T
    # Along x and y: place of the edge at 0 in the picture, its pixels per pixel, and number of pixels.
    origin, unit, extent = np.zeros((2, n)), np.ones((2, n)), start.copy()
    for number, step in steps:
        ops, sizes = step.plan(sizes, keys.uniforms(number, step.draws))
        for op in ops:
            numbers = np.asarray(op.params, np.float64).T
            if op.kind == CROP:
                origin, extent = origin + unit * numbers[:2], numbers[2:4]
            elif op.kind == RESIZE:
                unit, extent = unit * extent / numbers[:2], numbers[:2]
            elif op.kind == FLIP:
                flipped = numbers[:2] > 0.5
                origin, unit = np.where(flipped, origin + unit * extent, origin), np.where(flipped, -unit, unit)
            elif op.kind == PAD:
                origin, extent = origin - unit * numbers[:2], extent + numbers[:2] + numbers[2:4]
    ends = origin + unit * extent
    low, high = np.minimum(origin, ends), np.maximum(origin, ends)
    flips = (unit < 0).T.tolist()
    return [Box(*edges, *flips[i]) for i, edges in enumerate(np.concatenate([low, high]).T.tolist())]


def _summary(content: bytes, head: Ints, original: _Original | None, tally: _Tally) -> str:
    """Return size, format and peculiarities of a picture."""
    kind = _FORMATS.get(int(head[_FORMAT])) or ("unknown" if original is None else original.kind)
    tally.formats[kind] += 1
    tally.nbytes.append(len(content))
    parts = [kind, show_bytes(len(content))]
    if original is not None:
        tally.sizes.append((original.width, original.height))
        parts.insert(0, f"{original.width} × {original.height}")
    if kind == "JPEG" and head[_COMPONENTS] in (1, 4):
        parts.insert(-1, "grey" if head[_COMPONENTS] == 1 else "CMYK")
    if head[_ORIENTATION] > 1:
        tally.turned += 1
        parts.insert(-1, f"turned (EXIF {head[_ORIENTATION]})")
    return ", ".join(parts)


def _labels(corpus: Deserializer, chunk: Chunk, picture: str, i: int) -> tuple[str, list[str]]:
    """Return the class, if there is one, and other streams that are short enough to be shown."""
    classes: Sequence[str] = getattr(corpus, "classes", ())
    title, facts = "", []
    for name, value in chunk.values.items():
        stream = chunk.schema[name]
        if name == picture:
            continue
        number = _class_number(value, i)
        if number is not None and name in ("label", "class", "cls", "target", "y") and not title:
            named = 0 <= number < len(classes)
            title = str(classes[number]) if named else f"{name} {number}"
        elif stream.is_text or stream.is_bytes:
            assert isinstance(value, BytesValue)
            text = value.slice(i, i + 1).tolist()
            facts += [f"{name}: {text[0]:.{_WORDS}}"] if text and isinstance(text[0], str) else []
        elif number is not None:
            facts.append(f"{name}: {number}")
        elif not stream.sparse and 0 < (rows := np.asarray(value.slice(i, i + 1).dense().rows)).size <= _NUMBERS:
            facts.append(f"{name}: {', '.join(f'{number:g}' for number in rows.ravel())}")
    return title, facts


def _class_number(value: Value, i: int) -> int | None:
    """Return an integer, or the index of the one in a one-hot vector."""
    sequence = value.slice(i, i + 1)
    if isinstance(sequence, SparseValue):
        return int(sequence.indices[0]) if len(sequence.indices) == 1 else None
    if isinstance(sequence, BytesValue):
        return None
    rows = np.asarray(sequence.dense().rows)
    return int(rows.ravel()[0]) if rows.size == 1 and rows.dtype.kind in "iu" else None


# ---- encoding for the page -----------------------------------------------------------------------------------


def _png(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return file.getvalue()


class _Original(NamedTuple):
    """An upright picture made small, as a JPEG, and its original size and format."""

    jpeg: bytes
    width: int
    height: int
    kind: str


def _original(content: bytes) -> _Original | None:
    """Return a picture upright and of at most `_SIDE` pixels. None if Pillow cannot read it."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings(), decoders.open_with_pillow(content) as opened:
            warnings.simplefilter("ignore")
            width, height = opened.size
            if opened.getexif().get(_EXIF_ORIENTATION, 1) >= 5:
                width, height = height, width
            kind = opened.format or "unknown"
            opened.draft("RGB", (_SIDE, _SIDE))
            upright = ImageOps.exif_transpose(opened).convert("RGB")
        upright.thumbnail((_SIDE, _SIDE))
    except (OSError, SyntaxError, TypeError, ValueError, Image.DecompressionBombError):
        return None
    file = io.BytesIO()
    upright.save(file, "JPEG", quality=88)
    return _Original(file.getvalue(), width, height, kind)


# ---- the page ------------------------------------------------------------------------------------------------


def _page(
    opened: Opened,
    options: PageOptions,
    ordinals: Sequence[int],
    sequences: int,
    shown: Sequence[Shown],
    tally: _Tally,
) -> str:
    corpus, steps, last = opened.corpus, options.steps or DEFAULT_STEPS, options.views - 1
    sweeps = f"sweeps 0 {'to' if last > 1 else 'and'} {last}" if last else "sweep 0"
    spaced = "" if len(ordinals) == sequences else ", evenly spaced in the corpus,"
    lead = (
        f"{sampled.share(len(ordinals), sequences)}{spaced} as a source with seed {options.seed} delivers them in "
        f"{sweeps}, after {' and '.join(steps)}."
    )
    rows = [
        ("corpus", f"{corpus.name}, {opened.format}"),
        ("sequences", sampled.numbers(ordinals)),
        ("seed, sweeps", f"{options.seed}, {sweeps}"),
        ("transforms", ", then ".join(steps)),
    ]
    about = {
        "streams": ", ".join(f"{name} ({stream.kind})" for name, stream in corpus.schema.items()),
        "pictures shown": ", ".join(f"{count} {kind}" for kind, count in tally.formats.most_common()),
        **{f"{kind} decoded by": decoder for kind, decoder in decoding().items()},
    }
    return html(corpus.name, sampled.lead(lead, rows), _tiles(shown, tally), shown, about.items())


def _tiles(shown: Sequence[Shown], tally: _Tally) -> list[tuple[str, str]]:
    tiles = []
    if tally.shape:
        tiles.append((" × ".join(map(str, tally.shape)), "uint8, each sample"))
    if tally.sizes:
        tiles.append((shown_sizes(np.array(tally.sizes)), "upright, width × height"))
    if tally.nbytes:
        low, high = show_bytes(min(tally.nbytes)), show_bytes(max(tally.nbytes))
        tiles.append((low if low == high else f"{low} to {high}", "encoded"))
    if tally.turned:
        tiles.append((str(tally.turned), "turned by EXIF"))
    if unreadable := sum(picture.error is not None for picture in shown):
        tiles.append((str(unreadable), "unreadable"))
    return tiles
