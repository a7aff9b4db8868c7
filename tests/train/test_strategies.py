"""Methods that only some strategies have are in separate classes, for which trainers and sessions check."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import feedline.train  # noqa: F401  # with all strategies
from feedline.train.strategy import (
    ExchangesInBackward,
    HoldsParts,
    KeepsState,
    Overlapping,
    Strategy,
)


def strategies(kind=Strategy):
    return [found for each in kind.__subclasses__() for found in (each, *strategies(each))]


@pytest.mark.parametrize("kind", [ExchangesInBackward, HoldsParts, KeepsState, Overlapping])
def test_strategies_derive_from_the_classes_of_their_methods(kind):
    """A method of a class from which a strategy does not derive would never be called."""
    names = {name for name in vars(kind) if not name.startswith("_")}
    able = {one for one in strategies() if issubclass(one, kind)}
    assert able
    assert able == {one for one in strategies() if names & set(dir(one))}
