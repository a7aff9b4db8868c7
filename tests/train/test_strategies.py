"""What only some strategies do is in classes of their own, which trainers and sessions look for."""

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
def test_no_strategy_has_a_method_that_nobody_would_call(kind):
    """It would be one of a class that it does not derive from."""
    names = {name for name in vars(kind) if not name.startswith("_")}
    able = {one for one in strategies() if issubclass(one, kind)}
    assert able
    assert able == {one for one in strategies() if names & set(dir(one))}
