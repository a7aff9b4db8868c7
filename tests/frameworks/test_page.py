"""The programs of the page on frameworks run with the real packages."""

from tests.docs.pages import Program
from tests.frameworks.run import FRAMEWORKS
from tests.frameworks.table import PAGE
from tests.frameworks.test_matrix import needs_frameworks
from tests.warm import IMPORTED


@needs_frameworks
def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    # The patch has to come before the framework.
    program = Program(str(PAGE), imported=lambda name: IMPORTED if name == "patched.py" else FRAMEWORKS)
    assert program.run(PAGE.read_text("utf-8")) > 0
