"""Messages of commands name their own options and script, and no winner where there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feedline.cli.console import use_option_names
from feedline.cli.pictures import shown_sizes
from feedline.cli.window_page import WindowChoice, advice
from feedline.errors import install_line
from tests.cli.shell import feedline

ROOT = Path(__file__).parents[2]

CONVERT = ("text", "memory", "jobs", "chunk_size", "overwrite")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("name it by text=", "name it by --text"),
        ("raise memory=, or lower chunk_size=", "raise --memory, or lower --chunk-size"),
        ("more than memory=2147483648", "more than --memory 2048M"),
        ("at most 3000000 bytes; raise memory=", "at most 2.9 MiB; raise --memory"),
        ("pass jobs=2", "pass --jobs 2"),
        ("pass context=2, got text", "pass context=2, got text"),
        ("expected 12345678 bytes, got 12345677", "expected 12345678 bytes, got 12345677"),
    ],
)
def test_errors_name_the_options_of_the_command(message, said):
    assert use_option_names(message, CONVERT) == said


def test_a_script_shows_its_own_frames(tmp_path):
    (tmp_path / "script.py").write_text("def inner():\n    raise KeyError('mine')\n\ninner()\n")
    told = feedline("run", "--as", "mxnet", tmp_path / "script.py", code=1).stderr
    assert told.count("File ") == told.count(f'File "{tmp_path}/script.py"') == 2
    assert told.startswith("Traceback")
    assert told.endswith("KeyError: 'mine'\n")


def test_the_hint_of_an_extra_installs_this_clone():
    if not (ROOT / "src").is_dir():
        pytest.skip("a wheel is not installed from a clone")
    assert install_line("torch").startswith("pip install -e '/")
    assert install_line("torch").endswith("[torch]'")


def test_ranges_match_each_side():
    assert shown_sizes(np.array([[40, 30], [30, 60], [64, 32]])) == "30 to 64 × 30 to 60"
    assert shown_sizes(np.array([[8, 9], [8, 9]])) == "8 × 9"


def test_options_that_tie_are_not_recommended():
    alike = [WindowChoice(name, 100, 1.0, 0.1, 2.0, [0.5], []) for name in ("Window(chunks=4)", "all")]
    assert "none is better" in advice(alike)
    assert advice([alike[0], WindowChoice("all", 200, 1.0, 0.1, 2.0, [0.5], [])]).startswith("Window(chunks=4) is the")
