"""Processes that may open only a few files more."""

from __future__ import annotations

import errno
import os
import resource
import shutil

import feedline as fl
from tests.torture import data, items
from tests.torture.case import Case, Refused
from tests.torture.scenario import Scenario

KINDS = (*data.FORMATS, "loader")


class FewDescriptors(Scenario):
    """An error names the limit. With more descriptors it continues where it was."""

    name = "few-descriptors"
    asks = "does running out of descriptors end in words, and harm nothing?"
    seconds = 90.0

    def run(self, case: Case) -> None:
        kind = KINDS[case.number % len(KINDS)]
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        spare = case.rng.randrange(40 if kind == "loader" else 14)
        what = f"{kind} with {spare} descriptors more"
        order = {"seed": case.rng.randrange(1 << 64), "shuffle": True}
        if kind == "loader":
            workers = {"num_workers": 2, "workers": "process", "multiprocessing_context": "fork"}
            expected = items_of(fl.DataLoader(items.Augmented(60), batch_size=7, **order))
            feed = fl.DataLoader(items.Augmented(60), batch_size=7, **workers, **order)
            read, promised = items_of, (fl.FeedlineError, OSError)
        else:
            corpus = case.data / "few"
            if case.rng.random() < 0.5:  # without its indices
                corpus = case.folder / "few"
                indices = shutil.ignore_patterns("*.feedline-index")
                shutil.copytree(case.data / "few", corpus, ignore=indices)
            expected = data.in_order(fl.MinibatchSource(data.FORMATS[kind](corpus), max_sweeps=2, **order))
            feed, read, promised = None, data.in_order, (fl.FeedlineError,)

        def limited() -> list[object]:
            nonlocal feed
            if feed is None:
                feed = fl.MinibatchSource(data.FORMATS[kind](corpus), max_sweeps=2, **order)
            return read(feed)

        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + spare, before[1]))
        try:
            got = case.attempt(what, limited, promised)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        if not isinstance(got, Refused):
            case.compare(what, expected, got)
            return
        if isinstance(got.error, OSError) and got.error.errno not in (errno.EMFILE, errno.ENFILE):
            case.fail("foreign", f"{what}: {got.error!r}")
        if kind == "loader":
            state = feed.state_dict()
            left = case.attempt(f"{what}, then more", lambda: items_of(feed), ())
            if not isinstance(left, Refused) and state["sequence"] == 0:
                case.compare(f"{what}, then more", expected, left)
            return
        place = 0 if feed is None else feed.position.sequence + feed.position.sweep * data.FEW
        if kind == "unsized" and place:
            return
        left = case.attempt(f"{what}, then more", limited, ())
        if not isinstance(left, Refused):
            case.compare(f"{what}, then more, from {place}", expected[place:], left)


def items_of(loader: fl.DataLoader) -> list[tuple[int, str]]:
    """The items of a sweep."""
    return [item for batch in loader for item in items.contents(batch)]
