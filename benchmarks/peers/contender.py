"""Workloads and contenders.

A contender is started in two steps. ``start`` imports its modules, off the clock, and returns the timed function,
which opens the data and returns an iterable of batches.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import WORKLOADS

OURS = "feedline"


class Given(NamedTuple):
    """The input of a turn.

    Attributes:
        data: folder of the contender's format.
        workers: processes or threads in addition to the loop. 0: none.
        scratch: an empty folder of the turn.
        share: number of the rank's share of the data, where the workload has several.
    """

    data: Path
    workers: int
    scratch: Path
    share: int = 0


#: Opens the data, on the clock. Each iteration over its result is an epoch.
Opened = Callable[[], Iterable[Any]]
#: Opens the data and continues from a state, or begins if it is None. Returns the batches, and a function that returns
#: the state after the last batch taken.
Resumed = Callable[[Any], tuple[Iterator[Any], Callable[[], Any]]]


@dataclass(frozen=True)
class Contender:
    """One setting of one peer.

    Attributes:
        peer: its name in the table.
        start: imports, and returns the timed function: `Opened`, or `Resumed` where the workload resumes.
        setting: words that distinguish this from the peer's other settings.
        form: the format of its data, a key of `Workload.makers`.
        needs: modules that it imports. The table names a missing one.
        workers: the numbers of workers that it is measured with.
        order: how it mixes samples: "whole", "buffer", "chunks", or "none".
        delivers: "torch" or "NumPy".
        ids: returns the numbers of a batch's samples. None: `ids_of`.
    """

    peer: str
    start: Callable[[Given], Opened | Resumed]
    setting: str = ""
    form: str = "raw"
    needs: tuple[str, ...] = ()
    workers: tuple[int, ...] = (0, 2)
    order: str = "whole"
    delivers: str = "torch"
    ids: Callable[[Any], NDArray[np.int64]] | None = None

    @property
    def name(self) -> str:
        """Peer and setting, which identify it within a workload."""
        return f"{self.peer}: {self.setting}" if self.setting else self.peer


@dataclass(frozen=True)
class Workload:
    """One table.

    Attributes:
        title: as printed.
        unit: the unit that is counted.
        contenders: the contenders, ours among them.
        makers: by format, a function that writes ``count`` samples into a folder.
        count: samples of a full run, and of a quick one.
        batch: samples in a batch.
        check: samples that are checked one by one in an untimed pass.
        shares: among how many ranks the data is divided. A turn measures the first of them, the check reads all.
        cold: whether it is measured with evicted files, too.
        seconds: time for which a turn counts batches.
        whole: a turn is one epoch, opening included.
        resumes: whether the time from a state to its next batch is measured.
        by: the figure that decides: "rate", "first_s" or "resume_s".
        absent: peers that do not take part, and why.
    """

    title: str
    unit: str
    contenders: Sequence[Contender]
    makers: dict[str, Callable[[Path, int], None]]
    count: tuple[int, int]
    batch: int
    check: int = 1000
    shares: int = 1
    cold: bool = False
    seconds: float = 0.8
    whole: bool = False
    resumes: bool = False
    by: str = "rate"
    absent: dict[str, str] = field(default_factory=dict)

    def find(self, name: str) -> Contender:
        """The contender of that name.

        Raises:
            ValueError: there is none.
        """
        for contender in self.contenders:
            if contender.name == name:
                return contender
        known = ", ".join(contender.name for contender in self.contenders)
        raise ValueError(f"expected a contender of this workload ({known}), got {name!r}")


def load(name: str) -> Workload:
    """The workload of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in WORKLOADS:
        raise ValueError(f"expected a workload, one of {', '.join(WORKLOADS)}, got {name!r}")
    found: Workload = importlib.import_module(f"benchmarks.peers.{name}").WORKLOAD
    return found


def ids_of(batch: Any) -> NDArray[np.int64]:
    """Return the numbers of a batch's samples: the value under "id", or the last of its parts."""
    found = batch["id"] if hasattr(batch, "keys") else batch[-1]
    return np.asarray(found).reshape(-1)


def parts_of(batch: Any) -> Iterator[Any]:
    """The arrays of a batch."""
    for part in batch.values() if hasattr(batch, "keys") else batch:
        if hasattr(part, "shape"):
            yield part


def touch(batch: Any) -> None:
    """Read a word of every page of a batch, as some are views of files that nobody has read yet."""
    for part in parts_of(batch):
        flat = part.reshape(-1)
        if len(flat):
            flat[:: max(1, 2048 // part.dtype.itemsize)].sum()
