"""Facts about the code on pages, where they can be compared: folders, exceptions, laws, targets, installation."""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from feedline import errors
from tests.docs.pages import ROOT, blocks, pages

SOURCE = ROOT / "src" / "feedline"
if not SOURCE.is_dir():
    pytest.skip("the sources are out of reach of a test of the wheel", allow_module_level=True)

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")


def section(text, title):
    """The text below a heading, to the next one of its rank."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert match, title
    return match[1]


# ---- layout -------------------------------------------------------------------------------------------------


def layout():
    """The tree in ARCHITECTURE.md: for each folder of the package, the names after it."""
    tree = blocks(section(ARCHITECTURE, "Layout"))[0].text
    package = tree[tree.index("src/feedline/\n") : tree.index("\nnative/")]
    folders, inner = {}, None
    for line in package.splitlines()[1:]:
        heads = re.match(r"[├└]── ((?:\w+/\s*)+)(.*)", line)
        below = re.match(r"│   [├└]── (\w+)/(.*)", line)
        if heads:
            names, inner = re.findall(r"\w+", heads[1]), heads[2]
            for name in names:
                folders[name] = [inner] if len(names) == 1 else []
            current = names[-1]
        elif below:
            folders[f"feed/{below[1]}"] = []
        elif line.startswith("│"):
            folders[current].append(line)
    return {folder: listed(" · ".join(rest)) for folder, rest in folders.items()}


def listed(text):
    """Names of modules between dots and bars, if there is nothing else between them."""
    parts = [part.strip(" │") for part in re.split(r"[·|]|\s{2,}", text)]
    return [part for part in parts if re.fullmatch(r"[a-z_]+/?", part)]


def folders(place):
    return {path.parent.name for path in place.glob("*/__init__.py")}


def test_the_layout_names_every_folder_of_the_package():
    assert {name for name in layout() if "/" not in name} == folders(SOURCE)
    assert {name.removeprefix("feed/") for name in layout() if "/" in name} == folders(SOURCE / "feed")


def test_what_the_layout_names_is_there():
    missing = [
        f"{folder}/{name}"
        for folder, names in layout().items()
        for name in names
        if not (SOURCE / folder / f"{name.rstrip('/')}.py").is_file() and not (SOURCE / folder / name).is_dir()
    ]
    assert missing == []
    # The parser of the tree works.
    assert sum(map(len, layout().values())) > 60


@pytest.mark.parametrize("init", sorted(SOURCE.rglob("__init__.py")), ids=lambda path: path.parent.name)
def test_no_package_exports_another_object_under_a_modules_name(init):
    """With `feedline.train.quantized` as function and module, pages generated from the code would show the module."""
    package = ".".join(init.parent.relative_to(SOURCE.parent).parts)
    modules = {path.stem for path in init.parent.glob("*.py")} | folders(init.parent)
    imports = [node for node in ast.parse(init.read_text("utf-8")).body if isinstance(node, ast.ImportFrom)]
    bound = {alias.asname or alias.name for node in imports if node.module != package for alias in node.names}
    assert sorted(bound & modules) == []


def test_folders_are_named_with_a_slash():
    """`report` is a folder, so the tree has `report/`."""
    assert [
        f"{folder}/{name}"
        for folder, names in layout().items()
        for name in names
        if not name.endswith("/") and (SOURCE / folder / name).is_dir()
    ] == []


def test_no_existing_folder_is_announced():
    """Pages do not announce a folder that exists."""
    for page in pages():
        if page.name != "CHANGELOG.md":
            text = page.read_text("utf-8")
            assert not re.search(r"not built yet|not raised yet|no part of this version", text), page.name


# ---- exceptions -----------------------------------------------------------------------------------------------


def tree_of(text):
    """Return (name, description) of the lines of a tree of exceptions."""
    return re.findall(r"[├└]── (\w+Error)\s+(.+)", text)


def exceptions():
    return {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.FeedlineError) and kind is not errors.FeedlineError
    }


def test_the_trees_of_exceptions_are_one():
    on_the_page = tree_of(section(ARCHITECTURE, "Errors"))
    assert on_the_page == tree_of(errors.__doc__)
    assert [name for name, _ in on_the_page] == list(exceptions())


def test_the_page_on_errors_lists_every_exception():
    text = (ROOT / "docs" / "how-to" / "errors.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \|", section(text, "The exceptions"), re.MULTILINE) == list(exceptions())


def test_every_exception_is_raised_somewhere():
    raised = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                raised.add(node.func.id)
    assert set(exceptions()) <= raised


# ---- laws -------------------------------------------------------------------------------------------------------


def test_the_table_of_laws_matches_the_tests():
    laws = ROOT / "tests" / "laws"
    linked = re.findall(r"\]\((test_\w+\.py)\)", (laws / "README.md").read_text("utf-8"))
    assert set(linked) == {path.name for path in laws.glob("test_*.py")}


@pytest.mark.parametrize(("page", "words"), [("ARCHITECTURE.md", 2500), ("README.md", 1200)])
def test_pages_that_everybody_reads_are_short(page, words):
    assert len((ROOT / page).read_text("utf-8").split()) <= words


def test_what_is_tried_in_numbers_scales_with_the_effort():
    literal = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (ROOT / "tests").rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"max_examples=\d", line)
    ]
    assert literal == []


# ---- targets and packages ---------------------------------------------------------------------------------------


def test_targets_are_listed_where_they_are_looked_for():
    text = (ROOT / "Makefile").read_text("utf-8")
    head = set(re.findall(r"^#   make ([\w-]+)", text, re.MULTILINE))
    phony = set(re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)[1].split())
    assert head == phony
    for page in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"^\$ make ([\w-]+)", (ROOT / page).read_text("utf-8"), re.MULTILINE))
        assert named <= head
    ours = Path(ROOT / ".ci" / "run").read_text("utf-8")
    assert set(re.findall(r"^make ([\w-]+)", ours, re.MULTILINE)) <= phony


def test_pages_install_from_the_clone():
    """As the package is not on PyPI, pages install it from the clone, with extras that exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for page in [*pages(), *sorted((ROOT / "examples").glob("*.py"))]:
        text = page.read_text("utf-8")
        assert not re.search(r"pip install\s+['\"]?feedline", text), page.name
        assert set(re.findall(r"pip install\s[^\n`]*?'\.\[(\w+)\]'", text)) <= extras.keys(), page.name


def test_every_extra_has_a_page_that_shows_it():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    of = runpy.run_path(str(ROOT / "tools" / "extras.py"))["pages"]()
    assert {"none", *extras} == {*of}
    assert [page for page in of.values() if page not in pages() and page.name != "README.md"] == []
