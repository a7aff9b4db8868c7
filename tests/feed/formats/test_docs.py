"""The code in the pages about formats runs as it stands."""

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[3] / "docs" / "formats"


@pytest.mark.parametrize("page", ["store.md", "parquet.md"])
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {"__name__": page})
