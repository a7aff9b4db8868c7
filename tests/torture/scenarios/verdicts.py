"""Programs with a planted fault, and healthy ones: the doctor names the fault, the stage and the rank, or nothing."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.torture.case import Case
from tests.torture.scenario import Scenario
from tests.torture.verdicts.programs import PROGRAMS
from tests.torture.verdicts.surroundings import Others, neighbours
from tests.torture.verdicts.verdict import examine, fault_in

_BUSY = 4  # processes that compete in the second round of all programs
_TRIES = 3
_OTHERS = 0.25  # share of the processors' time, from which others keep the machine busy


class Verdicts(Scenario):
    """The first finding is the planted fault, and healthy programs have none. A case is one program.

    Other programs of the machine change what limits a loop, so a verdict counts as wrong if it is so every time. On a
    machine that others keep busy, another finding may come first.

    A run begins with any of them, which its seed decides. ``--case verdicts/0-39`` are all 40, and the 40 cases after
    them the same on a busy machine.
    """

    name = "verdicts"
    asks = "does the doctor name a planted fault, and nothing in a healthy run?"

    def run(self, case: Case) -> None:
        program = PROGRAMS[(case.seed + case.number) % len(PROGRAMS)]
        if (reason := program.lacks()) is not None:
            case.tally(f"not tried, for lack of {reason}")
            return
        busy = _BUSY if case.number // len(PROGRAMS) % 2 else 0
        case.doing(f"{program.name} beside {busy} other processes")
        for left in reversed(range(_TRIES)):
            # The case's own folder may be in memory, and these programs read from a disk.
            folder = Path(tempfile.mkdtemp(prefix="verdicts-", dir=case.data.parent))
            try:
                with neighbours(busy), Others() as others:
                    verdict = examine(program, folder)
            finally:
                shutil.rmtree(folder)
            case.tally("verdicts")
            fault = fault_in(program, verdict)
            if fault is None:
                return
            if left:
                case.tally("verdicts that were tried again")
        if program.stage and verdict.findings and not busy and others.share > _OTHERS:
            case.tally("faults that others hid, as they kept the machine busy")
            return
        case.fail("silent", f"{program.name} beside {busy} other processes: {fault}")
