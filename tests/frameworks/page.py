"""Runs a page about pictures and datasets: its blocks change torch's module, so they have a process to themselves.

``python -m tests.frameworks.page PAGE``
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.docs.pages import Program
from tests.frameworks import hugging_datasets, pictures


def main() -> None:
    """See the module."""
    pictures.prepare()
    hugging_datasets.prepare()
    page = Path(sys.argv[1])
    assert Program(str(page)).run(page.read_text("utf-8")) > 0


if __name__ == "__main__":
    main()
