"""`tools/sizes.py` keeps sizes of interfaces and folders, and the number of vague names, below their limits."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SIZES = Path(__file__).parents[1] / "tools" / "sizes.py"
pytestmark = pytest.mark.skipif(not SIZES.is_file(), reason="tools/sizes.py is not in a wheel")
LIMITS = {"members": ("feed/seam.py:Seam", 3), "parameters": ("feed/seam.py:Seam", 2), "lines": ("feed", 14)}
SEAM = '''"""Two lines
of text."""


class Seam:
    """A seam."""

    flag: bool = False
    _private = 1

    def __init__(self, first, second=None):
        # a comment
        self.first = first

    def read(self):
        """Read."""
        return [
            self.first,
        ]

    @property
    def size(self):
        return 1


def function(*, one, **options):
    return one
'''


@pytest.fixture
def measured(tmp_path):
    """Run the tool over a package of one module. Return its exit status and its stderr."""

    def run(vague=(1, 111), **limits):
        folder = tmp_path / "src" / "feedline" / "feed"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "seam.py").write_text(SEAM)
        (tmp_path / "tools").mkdir(exist_ok=True)
        shutil.copy(SIZES, tmp_path / "tools")
        sizes = "".join(f'[{kind}]\n"{place}" = {limit}\n' for kind, (place, limit) in {**LIMITS, **limits}.items())
        names = f'[vague]\nwords = ["one"]\n"public parameters" = {vague[0]}\n"of a thousand names" = {vague[1]}\n'
        (tmp_path / "tools" / "sizes.toml").write_text(sizes + names)
        ran = subprocess.run([sys.executable, tmp_path / "tools" / "sizes.py"], capture_output=True, text=True)
        return ran.returncode, ran.stderr

    return run


def test_sizes_within_their_limits(measured):
    assert measured() == (0, "")


@pytest.mark.parametrize(
    ("kind", "place", "size"),
    [
        ("members", "feed/seam.py:Seam", 3),
        ("parameters", "feed/seam.py:Seam", 2),
        ("parameters", "feed/seam.py:function", 2),
        ("lines", "feed", 14),
    ],
)
def test_a_size_above_its_limit(measured, kind, place, size):
    assert measured(**{kind: (place, size)})[0] == 0
    status, says = measured(**{kind: (place, size - 1)})
    assert status == 1
    assert f"at most {size - 1} {kind} in {place}, found {size}" in says


def test_a_name_that_is_gone(measured):
    status, says = measured(members=("feed/seam.py:Gone", 3))
    assert status == 1
    assert "expected Gone in" in says
    assert "a limit for the lines of feed" in measured(lines=("other", 3))[1]


def test_vague_names(measured):
    """One of the 9 names bound in the module is `one`, a parameter of a public function."""
    status, says = measured(vague=(0, 111))
    assert status == 1
    assert "at most 0 vague names among public parameters, found 1" in says
    status, says = measured(vague=(1, 110))
    assert status == 1
    assert "at most 110 vague names among of a thousand names, found 111" in says
