"""The work of a conversion that was interrupted, kept next to the destination until the same call finishes it.

If the destination is in an object store, the work is in a folder of this machine, under a name made from the address.

The hidden folder ``.NAME.converting`` holds the plan that determines the bytes of the store (``plan.json``), the pieces
that the conversion has completed, with a record each (``*-000000.json``), and a lock, which the system releases however
the process ends. Work under another plan is removed, and so is work without a record, which saves nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from feedline.errors import DataError
from feedline.feed.files.records import read_record, write_record
from feedline.feed.formats.store.staging import discard
from feedline.feed.formats.store.targets import Target

# Files in the folder: locked by the working process, created just before the store appears, and the plan.
LOCK, DONE, PLAN = "lock", "done", "plan.json"
_RECORDS = "*-[0-9][0-9][0-9][0-9][0-9][0-9].json"


@contextlib.contextmanager
def unfinished(target: Target, plan: Mapping[str, Any], *, overwrite: bool) -> Iterator[Path]:
    """Yield the work folder, locked, of a store that is complete when the block ends without an exception.

    The block creates `DONE` before the store appears. Afterwards the folder is removed. After an exception it remains
    if it has a record, and a note on the exception names it.

    Raises:
        DataError: another process does the same work, or the folder cannot be written.
        FileExistsError: the name is taken.
    """
    work = target.local_path.parent / f".{target.local_path.name}.converting"
    target.clear_leftovers()
    try:
        target.refuse_existing(overwrite)
    except FileExistsError:
        if (work / DONE).exists():  # the call that wrote the store was killed before it cleaned up
            discard(work, target.local_path)
        raise
    with _lock(work):
        try:
            _claim(work, dict(plan))
            target.begin(work)
            yield work
        except BaseException as error:
            target.abort()
            if any(work.glob(_RECORDS)):
                error.add_note(f"the work done so far is in {work}: call again to continue, or delete it to start over")
            else:
                discard(work, target.local_path)
            raise
        discard(work, target.local_path)


def _claim(work: Path, plan: dict[str, Any]) -> None:
    with contextlib.suppress(ValueError):
        if read_record(work / PLAN) == plan:
            return
    # Remove the plan first: without it, an interrupted removal leaves nothing that looks valid.
    (work / PLAN).unlink(missing_ok=True)
    for entry in work.iterdir():
        if entry.name != LOCK:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    write_record(work / PLAN, plan)


@contextlib.contextmanager
def _lock(work: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        while True:
            work.mkdir(mode=0o755, exist_ok=True)
            try:
                lock = stack.enter_context(open(work / LOCK, "ab"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock.fileno()), os.stat(work / LOCK)):
                    break
            except BlockingIOError:
                raise DataError(
                    "expected no other process to convert into the same store, got one",
                    path=str(work),
                    hint="wait for it to finish, or choose another destination",
                ) from None
            except FileNotFoundError:
                pass  # another process finished at this moment and removed the folder
        yield
