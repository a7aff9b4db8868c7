"""Converts, builders of indices and everything else that writes files, killed on the way, alone or two at a time."""

from __future__ import annotations

import re
import shutil

from tests.torture import writers
from tests.torture.case import Case, Refused
from tests.torture.scenario import Scenario
from tests.torture.victims import Victim, draw, run


class KilledWriters(Scenario):
    """Output of a killed writer is complete or absent. The next one of that name cleans up, and succeeds."""

    name = "killed-writers"
    asks = "are files whole or absent after kills, and are left-overs cleared away?"
    seconds = 90.0

    def run(self, case: Case) -> None:
        writer = writers.WRITERS[case.number % len(writers.WRITERS)]
        rng = case.rng
        corpora, target = case.folder / "few", case.folder / "target"
        shutil.copytree(case.data / "few", corpora)
        target.mkdir(mode=0o700)
        before = writers.names(corpora)
        operations = 40
        for _ in range(rng.randint(1, 6)):
            instant = draw(rng, 0.05, operations)
            victims = [Victim(case, writer.write, corpora, target, instant=instant)]
            if writer.shared and rng.random() < 0.2:
                victims.append(Victim(case, writer.write, corpora, target))
            for victim in victims:
                ended = victim.wait()
                operations = max(operations, ended.operations)
                case.tally("kills", int(ended.hit))
                taken = ended.kind == "FileExistsError" and len(victims) > 1
                if ended.error is not None and not ended.promised and not taken:
                    case.fail("foreign", f"{writer.name}, {victim.told()}: {ended.error}")
            what = f"{writer.name} after {instant}"
            found = case.attempt(what, lambda: writer.check(corpora, target))
            if isinstance(found, Refused):
                case.fail("lost", f"{what}: what is left cannot be read: {found.error}")
            elif found:
                case.fail("silent", f"{what}: {found}")
        for folder in (corpora, target):  # a writer that finds one complete removes nothing
            for found in folder.rglob("*"):
                if found.suffix in (".feedline-index", ".feedline-join"):
                    found.unlink()
        run(case, f"{writer.name} at last", writer.write, corpora, target)
        if writer.check(corpora, target) != "":
            case.fail("silent", f"{writer.name} at last: {writer.check(corpora, target)}")
        whole = case.folder / "whole"
        whole.mkdir(mode=0o700)
        run(case, f"{writer.name} elsewhere", writer.write, corpora, whole)
        left = {_kind(n) for n in writers.names(target)} - {_kind(n) for n in writers.names(whole)}
        left |= {n for n in writers.names(corpora) - before if not n.endswith(".feedline-index")}
        if left:
            case.fail("left over", f"{writer.name}: {sorted(left)[:5]}")
        elif writer.alike and writer.shared and writers.print_of(target) != writers.print_of(whole):
            case.fail("silent", f"{writer.name}: after kills other bytes than without")


def _kind(name: str) -> str:
    return re.sub(r"\d+", "N", name)
