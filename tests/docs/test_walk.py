"""Files and folders that CONTRIBUTING names exist."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT
from tests.docs.test_architecture import SOURCE, section

WALK = section((ROOT / "CONTRIBUTING.md").read_text("utf-8"), "Where is it?")


def places(text):
    """Files and folders in code quotes."""
    return re.findall(r"`([\w/]+(?:/|\.py|\.cpp))`", text)


def missing(text):
    """The places that are neither in the package nor in the project."""
    return [place for place in places(text) if not (SOURCE / place).exists() and not (ROOT / place).exists()]


def test_every_place_is_there():
    assert len(places(WALK)) > 20
    assert missing(WALK) == []


def test_a_place_that_is_not_there_is_noticed():
    assert missing("`feed/nowhere.py` and `feed/`") == ["feed/nowhere.py"]
