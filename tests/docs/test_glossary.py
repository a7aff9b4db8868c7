"""One word, one meaning."""

from __future__ import annotations

import re
from collections import Counter

from tests.docs.pages import ROOT


def words(text):
    """Return the words that the glossary defines, in its order."""
    return re.findall(r"^- \*\*([^*]+)\*\*:", text, re.MULTILINE)


def test_the_glossary_defines_each_word_once():
    defined = words((ROOT / "docs" / "glossary.md").read_text("utf-8"))
    assert len(defined) > 30
    assert [word for word, times in Counter(word.lower() for word in defined).items() if times > 1] == []


def test_a_second_meaning_is_noticed():
    assert Counter(words("- **graph**: one\n- **node**: a\n- **graph**: two\n"))["graph"] == 2
