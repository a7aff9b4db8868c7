"""The picture of a mesh in the docs is what the page's command draws."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, Program

PAGE = ROOT / "docs" / "how-to" / "which-ranks.md"
IMAGE = ROOT / "docs" / "images" / "mesh.svg"


def test_the_picture_is_what_the_command_draws(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8")
    assert "(../images/mesh.svg)" in text
    Program(PAGE.name).run(text[: text.index("![")])
    assert IMAGE.read_text("utf-8") == (tmp_path / "mesh.svg").read_text("utf-8")


def test_the_page_is_short():
    assert len(re.sub(r"```.*?```", "", PAGE.read_text("utf-8"), flags=re.DOTALL).split()) <= 700
