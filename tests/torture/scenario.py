"""`Scenario`: a name, a question, and the code of one case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from tests.torture.case import Case


class Scenario(ABC):
    """One kind of failure. See the package.

    Attributes:
        name: in the table and on the command line.
        asks: the question, in one line.
        least: minimum seconds of a run of the suite for it to take part, as its cases are long.
        leaves: patterns of temporary files that a kill may leave, for reasons that the scenario gives.
        seconds: time after which a case is a hang, many times the usual one on a busy machine.
    """

    name: ClassVar[str]
    asks: ClassVar[str]
    least: ClassVar[float] = 0.0
    leaves: ClassVar[tuple[str, ...]] = ()
    seconds: ClassVar[float] = 180.0

    def missing(self) -> str | None:
        """Return what this machine lacks for it, or None."""
        return None

    @abstractmethod
    def run(self, case: Case) -> None:
        """Run one case, in its own process and folder."""
