"""What a page of samples begins with: which sequences of a corpus it shows, chosen how, and changed by what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from feedline.cli.console import show_count
from feedline.runs import page

_LISTED = 12  # numbers of sequences in the table


def evenly_spaced(count: int, sequences: int) -> NDArray[np.int64]:
    """Return at most ``count`` ordinals, with the first and last of all and equal distances."""
    return np.unique(np.linspace(0, sequences - 1, min(count, sequences)).round().astype(np.int64))


def share(count: int, sequences: int) -> str:
    """Return how many of a corpus' sequences are shown, as the subject of a sentence."""
    number = f"All {show_count(count)}" if count == sequences else f"{show_count(count)} of {show_count(sequences)}"
    return f"{number} sequences"


def numbers(ordinals: Sequence[int]) -> str:
    """Return the numbers of sequences. Of many, the first ones and the last one."""
    listed = [show_count(ordinal) for ordinal in ordinals]
    return ", ".join(listed if len(listed) <= _LISTED else [*listed[: _LISTED - 2], "...", listed[-1]])


def lead(sentence: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a sentence, and a table of names and texts, as HTML."""
    return f'<p>{page.inline(sentence)}</p>\n<div class="card">{page.facts(rows)}</div>'
