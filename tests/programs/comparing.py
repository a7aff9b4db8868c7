"""A training loop of some program, run with torch's DataLoader and with ours, and compared element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import feedline

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import _utils as torch_utils  # noqa: E402

TORCH = torch.utils.data.DataLoader
# torch waits 5 s for each worker that was killed.
torch_utils.MP_STATUS_CHECK_INTERVAL = 0.3
#: In this process, and in two others.
workers = pytest.mark.parametrize("workers", [0, 2])


def difference(expected: Any, got: Any, place: str = "") -> str | None:
    """The first difference between two trees of batches, or None. Types, dtypes and shapes have to be the same too."""
    if type(expected) is not type(got):
        return f"{place}: expected {type(expected).__name__} {expected!r}, got {type(got).__name__} {got!r}"
    if isinstance(expected, torch.Tensor):
        same = expected.dtype == got.dtype and torch.equal(expected.cpu(), got.cpu())
        return None if same else f"{place}: expected {expected!r}, got {got!r}"
    if isinstance(expected, np.ndarray):
        same = expected.dtype == got.dtype and np.array_equal(expected, got)
        return None if same else f"{place}: expected {expected!r}, got {got!r}"
    if isinstance(expected, Mapping):
        if list(expected) != list(got):
            return f"{place}: expected keys {list(expected)}, got {list(got)}"
        parts = ((expected[key], got[key], f"{place}[{key!r}]") for key in expected)
    elif isinstance(expected, (list, tuple)):
        if len(expected) != len(got):
            return f"{place}: expected {len(expected)} elements, got {len(got)}: {expected!r} and {got!r}"
        parts = ((*pair, f"{place}[{i}]") for i, pair in enumerate(zip(expected, got, strict=True)))
    else:
        return None if expected == got else f"{place}: expected {expected!r}, got {got!r}"
    return next((found for part in parts if (found := difference(*part)) is not None), None)


def batches_equal(expected: Any, got: Any) -> bool:
    """Whether two trees of batches are the same. If not, an error names the first place where they differ."""
    found = difference(expected, got)
    assert found is None, found
    return True


def as_torch(program: Callable[..., Any], **arguments: Any) -> Any:
    """What a program is fed with our DataLoader, once it is certain that torch's feeds it the same.

    Args:
        program: function of a DataLoader class that returns what it was fed. It is run once with each class, after the
            same `torch.manual_seed`.
    """
    fed = []
    for loader in (TORCH, feedline.DataLoader):
        torch.manual_seed(7)
        fed.append(program(loader, **arguments))
    assert fed[0], "expected a program that is fed something, got nothing"
    batches_equal(*fed)
    return fed[1]
