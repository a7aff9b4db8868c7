"""The site of `make docs` lists every page, in the order of docs/index.md, and its links into sources are valid.

`mkdocs build`, in CI, refuses broken links and anchors.
"""

from __future__ import annotations

import importlib.util
import posixpath
import re
from collections import Counter

import pytest

from tests.docs.pages import ROOT
from tests.docs.pages import pages as pages_with_examples
from tests.runs import chromium

if not (ROOT / "tools").is_dir():
    pytest.skip("what makes the site is out of reach of a test of the wheel", allow_module_level=True)
yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

SPEC = importlib.util.spec_from_file_location("site_of_feedline", ROOT / "tools" / "site.py")
site = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(site)


class Loader(yaml.SafeLoader):
    """YAML with the one tag that names a function of Python."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, tag, node: tag)
NAV = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)["nav"]  # a subclass of SafeLoader


def pages_of(entry):
    """Return the pages of an entry of `nav`: a page, or a list of pages and of titled entries."""
    if isinstance(entry, str):
        return [entry]
    if isinstance(entry, dict):
        entry = entry.values()
    return [page for part in entry for page in pages_of(part)]


SECTIONS = {title: pages_of(entry) for section in NAV for title, entry in section.items()}


def listed():
    """Pages as `nav` has them."""
    return [page for pages in SECTIONS.values() for page in pages]


def linked(text):
    """Pages of docs in the order of their first links."""
    return list(dict.fromkeys(re.findall(r"\]\(([\w/-]+\.md)", text)))


def test_how_tos_are_in_the_groups_of_the_index():
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    part = index.split("## How to\n", 1)[1].split("\n## ", 1)[0]
    groups = {text.split("\n", 1)[0]: [f"docs/{page}" for page in linked(text)] for text in part.split("### ")[1:]}
    (listed_groups,) = (section["How to"] for section in NAV if "How to" in section)
    assert {title: pages for group in listed_groups for title, pages in group.items()} == groups
    assert len(groups) > 5


def test_the_front_page_has_one_thing_to_do():
    """One command, before the first heading. Everything else is links: no table, no other code."""
    assert NAV[0] == {"Start": site.FRONT}
    assert site.ADDRESSES[site.FRONT] == "index.html"
    text = (ROOT / site.FRONT).read_text("utf-8")
    (code,) = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert text.count("```") == 2
    assert text.index(code) < text.index("\n## ")
    assert [line[:2] for line in code.splitlines()] == ["$ "]
    assert "\n|" not in text
    after = [line for line in text.split("\n## ", 1)[1].splitlines() if line.startswith("- ")]
    assert all(re.match(r"- \[", line) for line in after)


@pytest.mark.skipif(chromium.PROGRAM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [320, 720, 1280])
def test_no_code_is_cut(tmp_path, width):
    """In the style of the site, the longest line that a page may have is all in sight."""
    style = (ROOT / "docs" / "site.css").read_text("utf-8")
    code = "x = " + "y" * 30 + " + z" * 21 + "\n" + "z" * 120
    body = (
        f'<div class="md-typeset" style="max-width: 748px"><pre style="overflow: auto"><code>{code}</code></pre></div>'
    )
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><style>{style}</style>{body}", encoding="utf-8")
    browser = chromium.Browser(tmp_path / "profile")
    try:
        browser.open(page, width=width)
        assert browser.value(
            "(({scrollWidth, clientWidth}) => scrollWidth <= clientWidth)(document.querySelector('pre'))"
        )
        assert browser.value("document.documentElement.scrollWidth") <= width
    finally:
        browser.close()


def test_every_page_is_listed_once():
    assert Counter(listed()) == Counter(path.as_posix() for path in site.pages())


def test_pages_that_run_are_pages_of_the_site():
    assert {path.relative_to(ROOT) for path in pages_with_examples()} <= set(site.pages())


@pytest.mark.parametrize(
    ("title", "folder"),
    [("Tutorials", "tutorial"), ("How to", "how-to"), ("Explanation", "explanation"), ("Formats", "formats")],
)
def test_pages_are_listed_in_the_order_of_the_index(title, folder):
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    wanted = [f"docs/{page}" for page in linked(index) if page.startswith(f"{folder}/")]
    # The page that compares formats is after their table in docs/index.md, and before them in `nav`.
    first = "docs/formats/which.md"
    assert SECTIONS[title] == [page for page in wanted if page == first] + [page for page in wanted if page != first]


def test_reference_is_listed_in_the_order_of_its_index():
    index = (ROOT / "docs" / "reference" / "index.md").read_text("utf-8")
    wanted = ["docs/reference/index.md", *(f"docs/reference/{page}" for page in linked(index)), "docs/glossary.md"]
    assert SECTIONS["Reference"] == wanted


@pytest.mark.parametrize("page", site.pages(), ids=str)
def test_links_lead_to_pages(page):
    """Each relative link leads to a page, a picture, or a source that the site shows."""
    written = site.pages()
    there = {path.as_posix() for path in [*written, *site.tables(written)]}
    there |= {site.source_page(source) for source in site.sources(site.pages())}
    there |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "images").iterdir()}
    text = site._FENCE.sub("", site.led((ROOT / page).read_text("utf-8"), page))
    targets = [
        posixpath.normpath(posixpath.join(page.parent.as_posix(), target))
        for target in re.findall(r"\]\(([^)\s#]+)", text)
        if ":" not in target
    ]
    assert [target for target in targets if target not in there] == []


def test_links_into_the_reference_carry_no_anchor():
    """Anchors of the reference are `feedline.…` on the site and headings in the repository, so no link fits both."""
    pattern = r"\]\(([\w./-]*reference/\w+\.md#[^)\s]*)"
    links = {page: re.findall(pattern, (ROOT / page).read_text("utf-8")) for page in site.pages()}
    assert {page: found for page, found in links.items() if found} == {}


def test_a_source_is_led_to_the_page_that_shows_it():
    here = site.Path("docs/how-to/packing.md")
    text = "[a](../../examples/digits.py), [b](../../tests/oracles), [c](../index.md#formats), [d](https://x.y/z.py)\n"
    fence = "```text\n[a](../../examples/digits.py)\n```\n"
    assert site.led(text + fence, here) == (
        "[a](../../examples/digits.py.md), [b](../../tests/oracles/index.md), [c](../index.md#formats), "
        f"[d](https://x.y/z.py)\n{fence}"
    )
    assert site.led("[a](../../nowhere.py)", here) == "[a](../../nowhere.py)"
    assert site.led("[feed](src/feedline/feed)", site.Path("README.md")) == "[feed](src/feedline/feed/README.md)"


def test_folders_are_shown_by_what_is_in_them():
    shown = site.shown(site.Path("tests/oracles"))
    assert "| `" in shown
    for path in (ROOT / "tests" / "oracles").glob("[!_]*.py"):
        assert re.search(rf"^\| `{path.name}` \| \w.+ \|$", shown, re.MULTILINE), path.name
