"""One stream of one sequence as HTML: a strip of pictures, a spectrogram, documents in a row, curves, or words."""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data import Value
from feedline.data.value import BytesValue, DenseValue

MAX_FRAMES = 24
FRAME_SIDE = 160
_WORDS = 200
_NUMBERS, _CURVES = 8, 6
_SOUND = 2_000  # samples of shape () from which a stream of floats is shown as sound
_WINDOW, _COLUMNS, _ROWS = 512, 600, 96  # of a spectrogram: samples of a window, pixels
_WIDE, _HIGH = 600, 120
_COLOURS = 6
_DECIBELS = 80.0
# From dark to light, as the eye sees it: blue, violet, orange, yellow.
_HEAT = np.array([[8, 10, 40], [90, 25, 120], [205, 70, 85], [250, 160, 50], [252, 250, 190]], np.float64)


class Marks(NamedTuple):
    """What is known of the samples of a window.

    Attributes:
        offsets: of each sample from the present one. Empty if there is no window.
        present: whether each sample exists. None if all do.
    """

    offsets: Sequence[float] = ()
    present: NDArray[np.bool_] | None = None

    def caption(self, i: int) -> str:
        """Return the caption of a sample."""
        return f"{self.offsets[i]:+g}" if i < len(self.offsets) and self.offsets[i] else "0"

    def is_padded(self, i: int) -> bool:
        """Return whether a sample does not exist."""
        return self.present is not None and i < len(self.present) and not self.present[i]


def drawn(value: Value, marks: Marks) -> str:
    """Return a stream of one sequence as HTML."""
    if isinstance(value, BytesValue):
        return _strings(value, marks)
    if not isinstance(value, DenseValue):
        return _words(f"{value.num_samples} sparse samples")
    rows = np.asarray(value.rows)
    if rows.dtype == np.uint8 and rows.ndim in (4, 5) and rows.shape[-1] in (1, 3):
        frames = rows.reshape(-1, *rows.shape[-3:])
        return strip([png(thumbnail(frame)) for frame in frames[:MAX_FRAMES]], marks, len(frames))
    if rows.dtype.kind == "f" and rows.ndim == 1 and len(rows) >= _SOUND:
        return heat(spectrogram(rows), f"spectrogram of {len(rows):,} samples")
    if rows.dtype.kind == "f" and rows.ndim == 2 and rows.shape[1] >= 16 and len(rows) >= 16:
        return heat(rows.T[::-1], f"{len(rows):,} samples of {rows.shape[1]}")
    if rows.dtype.kind in "iuf" and rows.ndim > 1 and len(rows) == 1 and rows.shape[1] > 1:
        return curves(rows[0].reshape(rows.shape[1], -1).astype(np.float64), marks)
    return _words(_numbers(rows))


def strip(frames: Sequence[bytes], marks: Marks, count: int) -> str:
    """Return encoded pictures side by side: the present one with a frame, those that do not exist pale."""
    items = []
    for i, data in enumerate(frames):
        kind = "jpeg" if data[:2] == b"\xff\xd8" else "png"
        now = i < len(marks.offsets) and not marks.offsets[i]
        style = "padded" if marks.is_padded(i) else "now" if now else ""
        caption = f"{marks.caption(i)}{', padded' if style == 'padded' else ''}" if marks.offsets else str(i)
        items.append(
            f'<li class="{style}"><img src="{uri(data, kind)}" alt="frame {escape(caption)}">'
            f"<span>{escape(caption)}</span></li>"
        )
    more = f"<li><span>... {count - len(frames)} more</span></li>" if count > len(frames) else ""
    return f'<ol class="strip">{"".join(items)}{more}</ol>'


def spans(segments: NDArray[Any], name: str) -> str:
    """Return a packed row as a bar with a coloured span for each document. ``segments`` has 0 for padding."""
    edges = np.flatnonzero(np.diff(segments, prepend=-1, append=-1)).tolist()
    count, parts = max(len(segments), 1), []
    for first, end in itertools.pairwise(edges):
        document = int(segments[first])
        place = f'x="{first * _WIDE / count:.2f}" width="{(end - first) * _WIDE / count:.2f}"'
        colour = f"s{(document - 1) % _COLOURS + 1}" if document else "empty"
        title = f"document {document}: {end - first} {name}" if document else f"padding: {end - first}"
        parts.append(f'<rect class="{colour}" {place} height="24"><title>{escape(title)}</title></rect>')
    documents = len({int(segment) for segment in segments if segment})
    label = f"{documents} documents in {count} {name}, {np.count_nonzero(segments == 0)} of them padding"
    bar = f'<svg class="spans" viewBox="0 0 {_WIDE} 24" preserveAspectRatio="none" role="img" aria-label="{label}">'
    return f"{bar}{''.join(parts)}</svg>{_words(label)}"


def curves(columns: NDArray[np.float64], marks: Marks) -> str:
    """Return the columns of an array (n, k) as curves over its rows. Samples that do not exist are shaded."""
    shown = columns[:, :_CURVES]
    finite = shown[np.isfinite(shown)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    n, extent = len(shown), (high - low) or 1.0
    x = (np.arange(n) + 0.5) * _WIDE / n
    padded = np.diff([0, *(marks.is_padded(i) for i in range(n)), 0])
    parts = [
        f'<rect class="padded" x="{first * _WIDE / n:.1f}" width="{(end - first) * _WIDE / n:.1f}" height="{_HIGH}"/>'
        for first, end in zip(np.flatnonzero(padded > 0), np.flatnonzero(padded < 0), strict=True)
    ]
    if marks.offsets and 0 in marks.offsets:
        now = x[list(marks.offsets).index(0)]
        parts.append(f'<line class="now" x1="{now:.1f}" x2="{now:.1f}" y1="0" y2="{_HIGH}"/>')
    for k, column in enumerate(shown.T):
        y = _HIGH - 4 - (column - low) / extent * (_HIGH - 8)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if np.isfinite(b))
        parts.append(f'<polyline class="s{k + 1}" points="{points}"/>')
    label = f"{n} samples of {columns.shape[1]} numbers, {low:.4g} to {high:.4g}"
    more = f", the first {_CURVES} are shown" if columns.shape[1] > _CURVES else ""
    svg = f'<svg class="curves" viewBox="0 0 {_WIDE} {_HIGH}" preserveAspectRatio="none" role="img" '
    return f'{svg}aria-label="{label}">{"".join(parts)}</svg>{_words(label + more)}'


def spectrogram(samples: NDArray[Any]) -> NDArray[np.float64]:
    """Return the levels of frequencies over time in decibels, (rows, columns), high frequencies first."""
    step = max(_WINDOW // 4, -(-len(samples) // _COLUMNS))
    padded = np.pad(samples.astype(np.float64), (0, max(0, _WINDOW - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::step]
    power = np.abs(np.fft.rfft(frames * np.hanning(_WINDOW), axis=1)) ** 2
    bins = power[:, : _WINDOW // 2].T
    rows = bins.reshape(_ROWS, -1, bins.shape[1]).mean(1) if len(bins) % _ROWS == 0 else bins
    level = 10 * np.log10(np.maximum(rows, 1e-12))
    return np.asarray(np.maximum(level, level.max() - _DECIBELS)[::-1])


def heat(levels: NDArray[Any], label: str, segment: tuple[float, float] | None = None) -> str:
    """Return levels (rows, columns) as a picture, with a frame around a segment: its shares of the width."""
    finite = np.where(np.isfinite(levels), levels, levels[np.isfinite(levels)].min(initial=0)).astype(np.float64)
    low, high = float(finite.min()), float(finite.max())
    share = (finite - low) / ((high - low) or 1.0) * (len(_HEAT) - 1)
    lower = np.minimum(share.astype(np.int64), len(_HEAT) - 2)
    weight = (share - lower)[..., None]
    pixels = (_HEAT[lower] * (1 - weight) + _HEAT[lower + 1] * weight).astype(np.uint8)
    mark = ""
    if segment is not None:
        begin, end = segment
        mark = f'<i class="segment" style="left:{100 * begin:.2f}%;width:{100 * (end - begin):.2f}%"></i>'
    picture = f'<img src="{uri(png(pixels), "png")}" alt="{escape(label)}">'
    return f'<div class="heat">{picture}{mark}</div>{_words(label)}'


def thumbnail(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return fewer pixels of a picture."""
    step = max(1, -(-max(pixels.shape[:2]) // FRAME_SIDE))
    return pixels[::step, ::step]


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels (height, width, 1 or 3) as a PNG."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def uri(data: bytes, kind: str) -> str:
    """Return an encoded picture as an address."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def is_picture(data: bytes) -> bool:
    """Return whether bytes begin as those of a JPEG or a PNG."""
    return data.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n"))


def _strings(value: BytesValue, marks: Marks) -> str:
    contents: list[Any] = value.samples()
    if contents and all(isinstance(item, bytes) and is_picture(item) for item in contents):
        return strip(contents[:MAX_FRAMES], marks, len(contents))
    texts = [item if isinstance(item, str) else f"{len(item):,} bytes" for item in contents[:MAX_FRAMES]]
    return _words(" | ".join(texts))


def _numbers(rows: NDArray[Any]) -> str:
    flat = rows.ravel()
    shown = " ".join(f"{number:g}" if flat.dtype.kind == "f" else str(number) for number in flat[:_NUMBERS].tolist())
    return f"{shown}{' ...' if len(flat) > _NUMBERS else ''}" + (f" ({len(rows):,} samples)" if len(rows) > 1 else "")


def _words(text: str) -> str:
    return f"<p>{escape(text if len(text) <= _WORDS else text[:_WORDS] + ' ...')}</p>"
