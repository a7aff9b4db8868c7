"""Sequences as lines of CNTK text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def sequence_to_cntk_text_format(seq_idx: int, alias_tensor_map: Mapping[str, Any]) -> str:
    """Return a sequence as CTF, one line per time step. Shorter streams end earlier.

    For whole corpora use `feedline.write_ctf`.

    Args:
        seq_idx: id of the sequence.
        alias_tensor_map: mapping from names in the file to samples: an array or nested lists ``(length, ...)``, or a
            list with one dictionary from index to value per sample.

    Returns:
        Lines without a final newline, or an empty string if no stream has a sample.

    Raises:
        ValueError: samples that are neither numbers nor dictionaries.
    """
    columns = {alias: _samples(alias, alias_tensor_map[alias]) for alias in sorted(alias_tensor_map)}
    lines = []
    for step in range(max(map(len, columns.values()), default=0)):
        samples = [f"|{alias} {texts[step]}" for alias, texts in columns.items() if step < len(texts)]
        lines.append(f"{seq_idx}\t" + " ".join(samples))
    return "\n".join(lines)


def _samples(alias: str, tensor: Sequence[Any]) -> list[str]:
    if len(tensor) == 0:
        return []
    if isinstance(tensor[0], Mapping):
        return [" ".join(f"{index}:{sample[index]}" for index in sorted(sample)) for sample in tensor]
    try:
        array = np.asarray(tensor)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"expected numbers or dictionaries from index to value for `{alias}`, got {type(tensor[0]).__name__}"
        )
    return [" ".join(np.ravel(sample).astype(str).tolist()) for sample in array]
