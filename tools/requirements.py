"""Prints the requirements of an extra of pyproject.toml, `feedline[...]` references followed, one per argument.

Lets `make` install the dependencies once and the package itself again whenever native code changes.
"""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
found: dict[str, None] = dict.fromkeys(project["dependencies"])


def follow(extra: str) -> None:
    """Collect the requirements of ``extra``."""
    for requirement in project["optional-dependencies"][extra]:
        if inner := re.fullmatch(r"feedline\[(.*)\]", requirement):
            for name in inner[1].split(","):
                follow(name)
        else:
            found[requirement] = None


for name in sys.argv[1:]:
    follow(name)
print(" ".join(found))
