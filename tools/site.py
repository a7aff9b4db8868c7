"""The site that `mkdocs` makes of this repository: which files are pages, and the targets of links into sources.

The site has the tree of the repository, so that a relative link between pages means the same in both, and pages need no
second set of links. docs/index.md is its front page. Pages of Markdown are in docs, at the top, and next to the code as
README.md. A source file that a page links to is shown with its lines numbered, a folder as a table of its modules, each
with the first sentence of its docstring. Neither is in the search, which finds text written for readers.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
#: Folders without pages: build outputs, environments, and benchmarks' results, which are data.
_OTHERS = {"build", "dist", "demo-out", "results", "bench-data"}
#: Alone in its tab: a list of pages next to it would name nothing else.
FRONT = "docs/index.md"
#: Addresses of the front page, and of the page that mkdocs would have in its place.
ADDRESSES = {FRONT: "index.html", "README.md": "README.html"}
_FENCE = re.compile(r"^```.*?^```[ \t]*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#\s])")
_SCHEME = re.compile(r"[a-z]+:")
#: In the repository, a name of the reference has a heading. On the site the heading has a signature.
_NAMED = re.compile(r"^## \w+\n\n(?=::: )", re.MULTILINE)
_LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".cmake": "cmake", ".toml": "toml", ".c": "c"}
#: A source page has no title of a section, and nothing that the search should find.
_HEAD = "---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n\n"


def pages() -> list[Path]:
    """Return the pages that people wrote, relative to the repository."""
    found = [path.relative_to(ROOT) for path in ROOT.glob("*.md")]
    found += [path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")]
    for top in ("benchmarks", "examples", "native", "src", "tests"):
        found += [path.relative_to(ROOT) for path in (ROOT / top).rglob("README.md")]
    return sorted(path for path in found if not _OTHERS.intersection(path.parts))


def links(page: Path) -> Iterator[str]:
    """Yield the paths of the relative links of a page, without anchors, outside of blocks of code."""
    for match in _LINK.finditer(_FENCE.sub("", (ROOT / page).read_text("utf-8"))):
        if not _SCHEME.match(match[1]):
            yield match[1]


def sources(written: list[Path]) -> list[Path]:
    """Return the files and folders of sources that pages link to, relative to the repository."""
    found = set()
    for page in written:
        for link in links(page):
            target = Path(posixpath.normpath(posixpath.join(page.parent.as_posix(), unquote(link))))
            if (ROOT / target).exists() and source_page(target) is not None:
                found.add(target)
    return sorted(found)


def tables(written: list[Path]) -> list[Path]:
    """Return the tables of benchmarks that pages link to, relative to the repository: the pages of one day."""
    found = {
        posixpath.normpath(posixpath.join(page.parent.as_posix(), link)) for page in written for link in links(page)
    }
    return sorted(
        Path(target) for target in found if target.startswith("benchmarks/results/") and target.endswith(".md")
    )


def source_page(target: Path) -> str | None:
    """Return the address of the page that shows a source, as mkdocs names sources of pages. None: it needs none."""
    if (ROOT / target).is_dir():
        name = "README.md" if (ROOT / target / "README.md").is_file() else "index.md"
        return (target / name).as_posix()
    if target.suffix == ".md" or target.parts[:2] == ("docs", "images"):
        return None
    return f"{target.as_posix()}.md"


def shown(source: Path) -> str:
    """Return the text of the page that shows a source."""
    place = ROOT / source
    if place.is_dir():
        rows = [
            f"| `{path.name}{'/' if path.is_dir() else ''}` | {_first_sentence(path)} |"
            for path in sorted(place.iterdir(), key=lambda path: (path.is_file(), path.name))
            if not path.name.startswith(("_", "."))
        ]
        return "\n".join([f"{_HEAD}# {source.as_posix()}/", "", "| name | contents |", "|---|---|", *rows]) + "\n"
    text = place.read_text("utf-8").rstrip("\n")
    language = _LANGUAGES.get(source.suffix, "text")
    return f'{_HEAD}# {source.as_posix()}\n\n````{{ .{language} linenums="1" }}\n{text}\n````\n'


def _first_sentence(path: Path) -> str:
    if path.is_dir():
        path = path / "__init__.py"
    if not path.is_file():
        return ""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.match(r"(?:(?://|#(?!\w)).*\n)+", text)
        said = re.sub(r"^(?://|#) ?", "", comment[0], flags=re.MULTILINE) if comment else ""
    paragraph = " ".join(said.split("\n\n")[0].split())
    return re.split(r"(?<=\w[.])\s", paragraph)[0].rstrip(".:").replace("|", "\\|").replace("``", "`")


# ---- what mkdocs calls ----------------------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace what mkdocs found in docs by the pages, their pictures and styles, and the sources they link to."""
    from mkdocs.structure.files import File, InclusionLevel  # tests of pages do without mkdocs

    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    written = pages()
    for path in written:
        page = File.generated(config, path.as_posix(), abs_src_path=str(ROOT / path))
        page.dest_uri = ADDRESSES.get(page.src_uri, page.dest_uri)
        files.append(page)
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix in {".svg", ".png", ".css", ".js"}:
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for path in tables(written):
        page = File.generated(config, path.as_posix(), abs_src_path=str(ROOT / path))
        page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    for source in sources(written):
        address = source_page(source)
        if address is not None and not (ROOT / address).is_file():
            page = File.generated(config, address, content=shown(source))
            page.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links into sources to the pages that show them, and leave headings of the reference to mkdocstrings."""
    here = Path(page.file.src_uri)
    if here not in pages():
        return markdown
    if here.as_posix() == FRONT:
        page.meta["hide"] = ["navigation"]
    return _NAMED.sub("", led(markdown, here))


def led(markdown: str, here: Path) -> str:
    """Return the text of a page with its links into sources pointed to pages. Broken links are left to mkdocs."""

    def there(match: re.Match[str]) -> str:
        if _SCHEME.match(match[1]):
            return match[1]
        target = Path(posixpath.normpath(posixpath.join(here.parent.as_posix(), unquote(match[1]))))
        address = source_page(target) if (ROOT / target).exists() else None
        return match[1] if address is None else posixpath.relpath(address, here.parent.as_posix())

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(there, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(there, markdown[end:])])
