"""Vectors with axes of length 1, which SciPy 1.8 removed from its distances."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from feedline.cli.old_names.notes import Notes

#: Functions of two vectors.
_DISTANCES = (
    "braycurtis", "canberra", "chebyshev", "cityblock", "correlation", "cosine", "dice", "euclidean", "hamming",
    "jaccard", "minkowski", "rogerstanimoto", "russellrao", "sokalsneath", "sqeuclidean", "yule",
)  # fmt: skip


def restore_distances(distance: Any, notes: Notes) -> None:
    """Let `scipy.spatial.distance`, a module that has been imported, take vectors such as a batch of one again."""
    for name in _DISTANCES:
        if hasattr(distance, name):
            setattr(distance, name, _squeezing(f"scipy.spatial.distance.{name}", getattr(distance, name), notes))


def _squeezing(name: str, measure: Callable[..., Any], notes: Notes) -> Callable[..., Any]:
    @functools.wraps(measure)
    def measure_squeezed(u: Any, v: Any, *args: Any, **options: Any) -> Any:
        vectors = [np.atleast_1d(np.squeeze(vector)) for vector in (u, v)]
        if max(np.ndim(u), np.ndim(v)) > 1 and all(vector.ndim == 1 for vector in vectors):
            notes.used(f"{name} of more than one axis", "np.squeeze")
            u, v = vectors
        return measure(u, v, *args, **options)

    return measure_squeezed
