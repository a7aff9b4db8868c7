"""Every page runs, shows its real output, and has no broken links."""

from __future__ import annotations

import contextlib
import re
import sys

import pytest

from tests.docs.pages import ELSEWHERE, FRAMEWORKS, LINUX, ROOT, Program, blocks, check_output, pages
from tests.linux import linux_only
from tests.quota import skipped_if_stopped

LONGEST_LINE = 120

PAGES = pages()
RUN = [
    page
    for page in PAGES
    if page not in ELSEWHERE and any(b.language in ("python", "console") for b in blocks(page.read_text("utf-8")))
]


def name(page):
    return page.relative_to(ROOT).as_posix()


def needing(page):
    """A page, marked with the framework or the system that it needs."""
    marks = [pytest.mark.frameworks(FRAMEWORKS[page])] if page in FRAMEWORKS else []
    marks += [linux_only(LINUX[page])] if page in LINUX else []
    return pytest.param(page, marks=marks, id=name(page))


@pytest.mark.parametrize("page", [needing(page) for page in RUN])
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    monkeypatch.setattr(sys, "path", sys.path.copy())  # a page may add its folder
    with skipped_if_stopped() if "doctor" in page.name else contextlib.nullcontext():
        assert Program(str(page)).run(page.read_text("utf-8")) > 0


def test_blocks_that_are_not_run_are_few_and_have_a_reason():
    reasons = [f"{name(page)}: {b.reason}" for page in PAGES for b in blocks(page.read_text("utf-8")) if b.reason]
    assert reasons == [
        # An h5py dataset is read like the substitute in tests/feed/formats/test_arrays.py.
        "docs/formats/arrays.md: needs h5py",
        # Object stores are those of tests/feed/remote.
        "docs/formats/store.md: needs an object store",
        # Run by tests/examples, under another name of the file.
        "docs/how-to/kvstore-async.md: it starts two more processes; examples/async_lstm.py is this program, "
        "and tested",
        # Only the refusal of an address without a token is tested, as no Ray of several hosts is available.
        "docs/how-to/kvstore-async.md: it needs several machines",
        "docs/how-to/object-stores.md: needs an object store",
        "docs/how-to/object-stores.md: needs an object store",
        # A hub on loopback is tested in tests/feed/remote/test_hub.py.
        "docs/how-to/object-stores.md: needs the network",
        # Run by tests/examples.
        "docs/how-to/several-workers.md: needs torchft, and a server; examples/torchft_replicas.py is this loop, "
        "and tested",
        # Run unchanged by tests/kvstore/test_hosts.py.
        "docs/how-to/several-workers.md: needs two machines",
        # Variables of launchers are set by tests/interop/test_launchers.py.
        "docs/how-to/several-workers.md: needs MPI",
        # Run with another program by tests/train/test_elastic.py.
        "docs/how-to/several-workers.md: it would have to be killed",
    ]


def anchors(text):
    """Targets of `page.md#...`: the anchors that GitHub makes of headings."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page):
    if not (ROOT / "src").is_dir():
        pytest.skip("pages link into the sources, which are out of reach of a test of the wheel")
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        wrong_anchor = anchor and place.suffix == ".md" and anchor not in anchors(place.read_text("utf-8"))
        if not place.exists() or wrong_anchor:
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lines_fit(page):
    lines = page.read_text("utf-8").splitlines()
    assert [f"{i}: {line}" for i, line in enumerate(lines, 1) if len(line) > LONGEST_LINE] == []


def test_every_page_is_reached_from_the_readme():
    if not (ROOT / "src").is_dir():
        pytest.skip("pages link into the sources, which are out of reach of a test of the wheel")
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text("utf-8")):
            place = (page.parent / target).resolve()
            if place.is_dir():
                todo += place.glob("*.md")
            elif place.suffix == ".md" and place.is_file():
                todo.append(place)
    assert [name(page) for page in PAGES if page not in reached] == []


# ---- the runner itself ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "page",
    [
        "```python\nassert 1 == 2\n```\n",
        "```python\nx = 1\n```\n```python\n>>> x\n2\n```\n",
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```python\n# broken.py\nraise SystemExit(3)\n```\n```console\n$ python broken.py\n```\n",
        "```console\n$ python -c 'print(1)'\n2\n```\n",
        "```console\n$ rm -r data\n```\n",
    ],
    ids=["assert", "doctest", "text", "exit status", "console", "unknown command"],
)
def test_a_wrong_page_fails(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError):
        Program("page.md").run(page)


def test_dots_match_anything():
    check_output("a ... c\n", "a b c\n", "here")
    with pytest.raises(AssertionError, match="here"):
        check_output("a ... c\n", "a b d\n", "here")
