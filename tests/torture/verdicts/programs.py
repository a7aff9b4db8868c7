"""All programs."""

from __future__ import annotations

from tests.torture.verdicts import loaders, sources
from tests.torture.verdicts.program import Program

PROGRAMS: tuple[Program, ...] = (*loaders.PROGRAMS, *sources.PROGRAMS)
