"""Pages as programs: run the commands that a reader would type, and compare the output with the page's.

Per page, in one namespace and one empty folder, from top to bottom:

- a ``python`` block is run, and the output of ``>>>`` lines is compared with the lines after them, as in doctest.
- a ``text`` block right after it is its output.
- a ``python`` block whose first line is ``# name.py`` is saved under that name.
- ``$ feedline ...`` and ``$ python ...`` in a ``console`` block are run, and the lines after them are their output.
- a block whose first line is ``# not run: reason`` is not run.

``...`` in shown output matches anything.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import feedline
from tests.warm import IMPORTED, run

ROOT = Path(__file__).resolve().parents[2]
# Run, and compared with the native kernels, by test_order_page.py; run where frameworks are installed by
# tests/frameworks.
ELSEWHERE = {
    ROOT / "docs" / "explanation" / "order.md",
    ROOT / "docs" / "how-to" / "frameworks.md",
    ROOT / "docs" / "how-to" / "pictures-and-datasets.md",
}
#: Packages of other people that the programs of a page need.
FRAMEWORKS = {
    ROOT / "docs" / "formats" / "arrayrecord.md": "array_record",
    ROOT / "docs" / "formats" / "arrow.md": "datasets",
    ROOT / "docs" / "formats" / "lance.md": "lance",
    ROOT / "docs" / "how-to" / "audio.md": "soundfile",
    ROOT / "docs" / "how-to" / "jax.md": "jax",
    ROOT / "docs" / "how-to" / "kvstore-async.md": "ray",
    ROOT / "docs" / "how-to" / "ray-workers.md": "ray",
    ROOT / "docs" / "how-to" / "torchtitan.md": "torchtitan",
    ROOT / "docs" / "how-to" / "video.md": "torchcodec",
}
#: What only Linux has of what pages show.
LINUX = {ROOT / "docs" / "how-to" / "out-of-core.md": "reads past the page cache"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Commands run in another directory than the tests, for which a relative PYTHONPATH would be wrong.
IMPORTED_FROM = str(Path(feedline.__file__).resolve().parents[1])
SETUP_COMMANDS = {"pip", "make", "git", "cd"}
COMMAND_SECONDS = 150

_FENCE = re.compile(r"^```(\w*)[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\w+\.\w+)\n")
_NOT_RUN = re.compile(r"# not run: (.+)\n")


class Block(NamedTuple):
    """A fenced block: its language, its text, the line of the page on which the text begins, from 1."""

    language: str
    text: str
    line: int
    follows: bool  # directly after the block before, except for blank lines

    @property
    def reason(self) -> str | None:
        """Return the reason why a block is not run, if it gives one."""
        match = _NOT_RUN.match(self.text)
        return match[1] if match else None


def pages() -> list[Path]:
    """All pages of the project, in a fixed order."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    fenced, end = [], -1
    for match in _FENCE.finditer(text):
        follows = end >= 0 and not text[end : match.start()].strip()
        fenced.append(Block(match[1], match[2], text.count("\n", 0, match.start(2)) + 1, follows))
        end = match.end()
    return fenced


class Program:
    """The run of one page: a namespace, a working directory (the current one), and the last output.

    Args:
        page: its name.
        imported: modules that the interpreter of a program has imported, by the program's first word, see `tests.warm`.
    """

    def __init__(self, page: str, imported: Callable[[str], tuple[str, ...]] = lambda _: IMPORTED) -> None:
        self.page, self.names, self.printed = page, {"__name__": "__main__"}, ""
        self.imported = imported

    def run(self, text: str) -> int:
        """Run all blocks. Returns the number of blocks that did something."""
        done = 0
        for block in blocks(text):
            if block.reason is not None:
                self.printed = ""
            elif block.language == "python":
                self._python(block)
            elif block.language == "console":
                self._console(block)
            elif block.language == "text" and block.follows:
                check_output(block.text, self.printed, f"{self.page}:{block.line}")
            else:
                self.printed = ""
                continue
            done += 1
        return done

    def _python(self, block: Block) -> None:
        self.printed = ""
        name = _FILE.match(block.text)
        if name:
            Path(name[1]).write_text(block.text, encoding="utf-8")
        elif block.text.lstrip().startswith(">>>"):
            self._doctest(block)
        else:
            # Line numbers of a traceback refer to the page.
            code = compile("\n" * (block.line - 1) + block.text, self.page, "exec")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(code, self.names)
            self.printed = out.getvalue()

    def _doctest(self, block: Block) -> None:
        test = doctest.DocTestParser().get_doctest(block.text, {}, self.page, self.page, block.line - 1)
        test.globs = self.names
        report = io.StringIO()
        runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
        failed, _ = runner.run(test, out=report.write, clear_globs=False)
        assert not failed, report.getvalue()

    def _console(self, block: Block) -> None:
        for command, shown in commands(block.text):
            where = f"{self.page}:{block.line}: {command}"
            words = shlex.split(command, comments=True)
            if words[0] in SETUP_COMMANDS:
                continue
            assert words[0] in ("feedline", "python"), f"{where}: neither run nor a command that sets up"
            start = []
            if words[0] == "feedline":
                start = ["-c", "import sys; from feedline.cli import main; sys.exit(main())"]
            arguments = ["tests.torchrun" if word == "torch.distributed.run" else word for word in words[1:]]
            done = run(
                [*start, *arguments],
                imported=self.imported(words[1]),
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS,
                env={**os.environ, "PYTHONPATH": IMPORTED_FROM, "COLUMNS": "100", "NO_COLOR": "1"},
            )
            assert done.returncode == 0, f"{where} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
            if shown.strip():
                check_output(shown, done.stdout, where)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Return the commands of a console block, each with its shown output."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def check_output(shown: str, got: str, where: str) -> None:
    """Compare as doctest does."""
    # Thin spaces within numbers are spaces, but doctest turns them into escapes before it compares.
    shown, got = (re.sub(r"[^\S\n]", " ", text) for text in (shown, got))
    checker: Any = doctest.OutputChecker()
    example = doctest.Example(source="", want=shown)
    if not checker.check_output(shown, got, FLAGS):
        raise AssertionError(f"{where}\n{checker.output_difference(example, got, FLAGS)}")
