"""``python -m tests.torture.verdicts NAME FOLDER RANK [mended]``: run one of the programs."""

from __future__ import annotations

import sys
from pathlib import Path

import feedline  # noqa: F401  # begins the examination
from tests.torture import plants
from tests.torture.verdicts.program import Place
from tests.torture.verdicts.programs import PROGRAMS

if __name__ == "__main__":
    plants.from_environment()
    name, folder, rank, *mended = sys.argv[1:]
    (program,) = (program for program in PROGRAMS if program.name == name)
    program.run(Place(Path(folder), bool(mended), int(rank)))
