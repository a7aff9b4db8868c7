"""Disks that are full at a random byte, under everything that writes files."""

from __future__ import annotations

import os
import resource
import shutil
from typing import Any

from tests.torture import training, writers
from tests.torture.arena import mount_memory, resize_memory, unmount
from tests.torture.case import Case
from tests.torture.scenario import Scenario
from tests.torture.victims import Victim, run

PAGE = 4096


class FullDisks(Scenario):
    """An error, no remaining files, existing files untouched. With room, it continues.

    As root the disk is a small memory file system. Otherwise the size of a file is limited.
    """

    name = "full-disks"
    asks = "does a full disk end in words, and leave what was there as it was?"
    seconds = 90.0

    def run(self, case: Case) -> None:
        if case.number % (len(writers.WRITERS) + 2) >= len(writers.WRITERS):
            return self._training(case)
        writer = writers.WRITERS[case.number % (len(writers.WRITERS) + 2)]
        corpora, whole = case.folder / "few", case.folder / "whole"
        shutil.copytree(case.data / "few", corpora)
        whole.mkdir(mode=0o700)
        run(case, f"{writer.name} with room", writer.write, corpora, whole)
        needed = sum(p.stat().st_size for p in whole.rglob("*") if p.is_file())
        # Once in a while there is something to be kept from before.
        again = case.rng.random() < 0.4
        with Disk(case, case.rng.randrange(needed + 2 * PAGE) + (needed + 8 * PAGE if again else 0)) as disk:
            if again:
                ended = Victim(case, writer.write, corpora, disk.folder).wait()
                if ended.error is not None:
                    return None  # what one leaves to its successor may need more room than it takes itself
                disk.fill(case.rng.randrange(needed + PAGE))
            before, said = writers.names(disk.folder), writers.print_of(disk.folder)
            what = f"{writer.name} with {disk}"
            ended = Victim(case, disk.limited, writer.write, corpora, disk.folder).wait()
            case.tally("refused", int(ended.error is not None))
            promised = {"DataError", "StoreError", *(kind.__name__ for kind in writer.refusals)}
            if ended.error is not None and not (ended.promised or ended.kind in promised):
                case.fail("foreign", f"{what}: {ended.error}")
            if ended.error is not None and not writer.repeated:
                if left := writers.names(disk.folder) - before:
                    case.fail("left over", f"{what}: {sorted(left)[:5]}")
                if again and writers.print_of(disk.folder) != said:
                    case.fail("silent", f"{what}: what was there has changed")
            if (found := writer.check(corpora, disk.folder)) or (ended.error is None and found is None):
                case.fail("silent", f"{what}: {found}")
            disk.empty()
            run(case, f"{what}, then room", writer.write, corpora, disk.folder)
            if (found := writer.check(corpora, disk.folder)) != "":
                case.fail("silent", f"{what}, then room: {found}")
        return None

    def _training(self, case: Case) -> None:
        expected = training.reference(case.data)
        with Disk(case, case.rng.randrange(200 << 10)) as disk:
            ended = Victim(case, disk.limited, training.train, disk.folder, case.data / "few").wait()
            case.tally("refused", int(ended.error is not None))
            if ended.error is not None and not (ended.promised or ended.kind == "OSError"):
                case.fail("foreign", f"a training with {disk}: {ended.error}")
            disk.empty()
            last = run(case, f"a training with {disk}, then room", training.train, disk.folder, case.data / "few")
            if last.result is not None and (wrong := training.differs(expected, last.result)):
                case.fail("silent", f"a training with {disk}, then room: other {wrong}")


class Disk:
    """A folder with limited room.

    Args:
        case: where.
        room: bytes.
    """

    def __init__(self, case: Case, room: int) -> None:
        self.folder, self._room = case.folder / "disk", room

    def __enter__(self) -> Disk:
        self.folder.mkdir(mode=0o700)
        self._mounted = mount_memory(self.folder, str(max(PAGE, self._room // PAGE * PAGE)))
        self.folder.chmod(0o700)
        return self

    def __exit__(self, *_: object) -> None:
        if self._mounted:
            unmount(self.folder)

    def __str__(self) -> str:
        return f"{'a disk' if self._mounted else 'files'} of {self._room} bytes"

    def limited(self, program: Any, *arguments: Any) -> Any:
        """Run a program, in its own process, within the limit."""
        if not self._mounted:
            room = max(1, self._room // 3)  # limit per file, of which several are written
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return program(*arguments)

    def fill(self, left: int) -> None:
        """Leave ``left`` bytes free."""
        found = os.statvfs(self.folder)
        if self._mounted and (size := found.f_bavail * found.f_frsize - left) > 0:
            resize_memory(self.folder, (found.f_blocks * found.f_frsize - size) // PAGE * PAGE)

    def empty(self) -> None:
        """Make room."""
        if self._mounted:
            resize_memory(self.folder, 64 << 20)
