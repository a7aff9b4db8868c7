"""A job of real processes over gloo whose ranks join, are killed, and do not commit steps, for tests and torture.

A coordinator, in the process of the test, decides before each step who takes part in it: it assigns rank and number of
ranks, and the place of the data to those that join. The members make a new process group for each membership, read
their shares, and sum what they have read over all ranks. A step is committed if every member that is still alive has
the sum, and if the coordinator wants it. Otherwise all load the state from before the step.
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import multiprocessing.connection
import os
import time
from dataclasses import dataclass, field

import numpy as np

import feedline as fl

SEQUENCES, CHUNK = 800, 50
#: Sizes of the minibatches of all ranks, in turn.
SIZES = (24, 60, 36)
SWEEPS = 2
#: Seconds within which a step is over, whatever happens to its members.
PATIENCE_S = 90.0
#: Seconds within which a group is made. A member that is killed meanwhile costs as many.
GROUP_S = 4.0

#: Numbers of ranks that divide the batches of `loader_feed`.
DIVIDING = (1, 2, 3, 4, 6)


class SourceFeed:
    """A source, with a size for each step.

    Args:
        order: orders in which the parts in rank order are not the minibatch: "arcs" and "squares". Else "plain".
    """

    def __init__(self, order="plain"):
        lengths = 1 + np.arange(SEQUENCES) * 7 % 5
        corpus = fl.ArrayDeserializer(x=[np.zeros(n, np.float32) for n in lengths], chunk_sequences=CHUNK)
        balance = "squares" if order == "squares" else "samples"
        how = {"order": fl.Arcs(8)} if order == "arcs" else {"shuffle": fl.Window(chunks=3)}
        self.source = fl.MinibatchSource(
            corpus, seed=4, max_sweeps=SWEEPS, partition=fl.Partition((0, 1), balance=balance), **how
        )
        self.repartition = self.source.repartition
        self.state = self.source.state_dict
        self.load = self.source.load_state_dict

    def next(self, size):
        """Return the sequences of this rank in the next step, or None at the end of the data."""
        minibatch = self.source.next_minibatch(size)
        return minibatch.ids.tolist() if minibatch else None

    def close(self):
        self.source.close()


class LoaderFeed:
    """A loader, whose batches have one size.

    Args:
        workers: number of them.
        kind: what they are.
    """

    def __init__(self, workers=0, kind="thread"):
        self.loader = fl.DataLoader(
            range(SEQUENCES),
            SIZES[0],
            shuffle=True,
            seed=5,
            partition=(0, 1),
            num_workers=workers,
            workers=kind,
            persistent_workers=workers > 0,
        )
        # Workers start before there are connections: forked later, they would keep those of old groups open.
        self.batches = iter(self.loader)
        self.repartition = self.loader.repartition
        self.state = self.loader.state_dict

    def load(self, state):
        self.loader.load_state_dict(state)
        self.batches = None

    def next(self, size):
        while self.loader.state_dict()["sweep"] < SWEEPS:
            if self.batches is None:
                self.batches = iter(self.loader)
            batch = next(self.batches, None)
            if batch is not None:
                return batch.tolist()
            self.batches = None
        return None

    def close(self):
        self.loader.close()


@dataclass
class Report:
    """What a member says after a step.

    Attributes:
        ids: sequences that it has read, or None at the end of the data.
        total: how often all ranks together have read each sequence, as summed by the group.
        state: of its feed, after the step.
        error: why the group has no sum.
    """

    ids: list[int] | None = None
    total: list[int] = field(default_factory=list)
    state: object = None
    error: str | None = None


@dataclass
class Order:
    """What a member is told before a step.

    Attributes:
        group: name of the process group, a new one for each membership.
        index, count: rank and number of ranks.
        size: of the minibatch of all ranks.
        takes_back: whether the step before was not committed.
        state: to be loaded by a member that joins.
    """

    group: str
    index: int
    count: int
    size: int
    takes_back: bool
    state: object


def member(connection, port, make, arguments):
    """Take part in a job, up to the end of the data."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    feed = make(*arguments)
    limit = datetime.timedelta(seconds=GROUP_S)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=limit)
    connection.send("joined")
    group = name = before = None
    with contextlib.suppress(EOFError):  # the coordinator is gone
        while True:
            order = connection.recv()
            if order.takes_back and before is not None:
                feed.load(before)
            feed.repartition((order.index, order.count))
            if order.state is not None:
                feed.load(order.state)
            before, report = feed.state(), Report()
            try:
                if order.group != name:
                    group, name = None, order.group
                    group = dist.ProcessGroupGloo(dist.PrefixStore(name, store), order.index, order.count, limit)
                report.ids = feed.next(order.size)
                if report.ids is not None:
                    total = torch.from_numpy(np.bincount(report.ids, minlength=SEQUENCES))
                    group.allreduce([total]).wait()
                    report.total = total.tolist()
            except RuntimeError as error:  # of gloo: another member is gone
                report.error, group, name = str(error), None, None
            report.state = feed.state()
            connection.send(report)
            if report.ids is None and report.error is None:
                break
    feed.close()


class Member:
    """A process of the job, from the side of the coordinator."""

    def __init__(self, context, port, make, arguments):
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=member, args=(theirs, port, make, arguments))
        self.process.start()
        theirs.close()
        self.is_there = self.is_current = False  # whether it has joined, and whether its feed is at the place of all

    def wait_to_join(self):
        assert self.connection.poll(PATIENCE_S), "a process did not start"
        assert self.connection.recv() == "joined"
        self.is_there = True

    def kill(self):
        self.process.kill()

    def hear(self, until):
        """Return the report of a step, or None if the process is gone."""
        ready = multiprocessing.connection.wait([self.connection], max(until - time.monotonic(), 0.0))
        assert ready, f"a hang: no report of process {self.process.pid} within {PATIENCE_S:.0f} s"
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return None


@dataclass
class History:
    """What happened.

    Attributes:
        steps: sequences of each committed step, in rank order.
        totals: the same as the group has summed it: how often each sequence was read.
        counts: number of ranks of each committed step.
        joins, deaths, lost: number of events: members that joined, were killed, steps that were not committed.
        ended: number of members at the end of the data.
        codes: how they ended.
    """

    steps: list[list[int]] = field(default_factory=list)
    totals: list[list[int]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    joins: int = 0
    deaths: int = 0
    lost: int = 0
    ended: int = 0
    codes: list[int | None] = field(default_factory=list)

    @property
    def events(self):
        return self.joins + self.deaths + self.lost


class Coordinator:
    """Decides who takes part in each step, and what happens to them.

    Args:
        rng: the only source of randomness.
        method: start method of processes.
        make: feed of a member, called with ``arguments``.
        arguments: of the feed.
        most: largest number of members.
        dividing: numbers of ranks that are possible. Members beyond the largest possible number sit out. None: all.
    """

    def __init__(self, rng, method, make, arguments=(), most=5, dividing=None):
        import torch.distributed as dist

        self.rng, self.make, self.arguments, self.most, self.dividing = rng, make, arguments, most, dividing
        self.context = multiprocessing.get_context(method)
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.members = []
        self.history, self.state, self.takes_back = History(), None, False
        self.groups, self.names = 0, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in self.members:
            each.kill()
            each.process.join()
            each.connection.close()

    def run(self, events):
        """Run up to the end of the data, with this many events before, and return the history."""
        while self.history.events < events or self.rng.random() < 0.3:
            chance = self.rng.random()
            if not self.members or (chance < 0.4 and len(self.members) < self.most):
                self.join(self.rng.randint(1, 2))
            elif self.step(is_wanted=chance < 0.9, kills=int(0.4 <= chance < 0.7) + int(chance > 0.97)):
                break
        while not self.members or not self.step():
            if not self.members:
                self.join(2)
        return self.history

    def join(self, count):
        started = [Member(self.context, self.store.port, self.make, self.arguments) for _ in range(count)]
        self.members += started
        for each in started:
            each.wait_to_join()
            self.history.joins += 1

    def taking_part(self):
        """Return the members of the next step, in rank order."""
        count = len(self.members)
        if self.dividing is not None:
            count = max(n for n in self.dividing if n <= count)
        return self.members[:count]

    def step(self, is_wanted=True, kills=0):
        """Let the members make a step, kill some meanwhile, and commit it or not. Return whether the data ended."""
        active = self.taking_part()
        if [id(each) for each in active] != self.names:
            self.groups += 1
            self.names = [id(each) for each in active]
            kills *= self.rng.random() < 0.15  # members rarely die while a group is made, as the others wait for it
        size = SIZES[len(self.history.steps) % len(SIZES)]
        for index, each in enumerate(active):
            state = None if each.is_current else self.state
            order = Order(str(self.groups), index, len(active), size, self.takes_back, state)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it was killed after the step before
                each.connection.send(order)
            each.is_current = True
        for each in self.members:
            each.is_current = each.is_current and each in active
        for victim in self.rng.sample(active, min(kills, len(active))):
            time.sleep(self.rng.random() ** 3 * 0.02)
            victim.kill()
            self.history.deaths += 1
        until = time.monotonic() + PATIENCE_S
        reports = [(each, each.hear(until)) for each in active]
        return self.judge(reports, is_wanted)

    def judge(self, reports, is_wanted):
        gone = [each for each, report in reports if report is None]
        for each in gone:
            each.connection.close()
            self.members.remove(each)
        there = [report for _, report in reports if report is not None]
        if gone or any(report.error is not None for report in there):
            self.names = []  # the group is broken
        ends = [report.ids is None and report.error is None for report in there]
        if any(ends):
            assert all(ends), f"{sum(ends)} of {len(ends)} ranks ended, the others did not"
            return self.end(reports)
        sums = [report.total for report in there if report.error is None]
        assert all(total == sums[0] for total in sums)
        # Ranks that are gone have given their shares to a sum that is there.
        self.takes_back = not is_wanted or not there or len(sums) < len(there)
        if self.takes_back:
            self.history.lost += 1
            return False
        assert all(report.state == there[0].state for report in there), "ranks are at different places"
        self.state = there[0].state
        self.history.steps.append([i for report in there for i in report.ids] if not gone else None)
        self.history.totals.append(sums[0])
        self.history.counts.append(len(reports))
        return False

    def end(self, reports):
        """Let all processes end by themselves, without anybody to wait for."""
        for each, report in reports:
            if report is not None:
                each.process.join(PATIENCE_S)
                self.history.codes.append(each.process.exitcode)
                self.history.ended += 1
        return True


def expected(make, arguments=()):
    """Return the sequences of each step of a single process."""
    feed, steps = make(*arguments), []
    while (ids := feed.next(SIZES[len(steps) % len(SIZES)])) is not None:
        steps.append(ids)
    feed.close()
    return steps


def differences(history, steps, is_in_rank_order=True):
    """Return what a history has lost, has twice, and has elsewhere than ``steps``: three lists of sentences."""
    lost, twice, misplaced = [], [], []
    for number, ids in enumerate(steps):
        right = np.bincount(ids, minlength=SEQUENCES)
        total = np.array(history.totals[number]) if number < len(history.totals) else np.zeros(SEQUENCES, np.int64)
        for less, more, sentences in ((total, right, lost), (right, total, twice)):
            if len(places := np.flatnonzero(less < more)):
                sentences.append(f"step {number}: {len(places)} of {len(ids)} sequences, such as {places[:5].tolist()}")
        got = history.steps[number] if number < len(history.steps) else None
        if is_in_rank_order and got is not None and got != ids:
            misplaced.append(f"step {number}: expected {ids[:5]}, got {got[:5]}")
    twice += [f"step {number} after the end" for number in range(len(steps), len(history.totals))]
    return lost, twice, misplaced


CASES = {
    "a source": (SourceFeed, ("plain",)),
    "a source with arcs": (SourceFeed, ("arcs",)),
    "a source with equal work": (SourceFeed, ("squares",)),
    "a loader": (LoaderFeed, ()),
    "a loader with threads": (LoaderFeed, (2, "thread")),
    "a loader with processes": (LoaderFeed, (2, "process")),
}


def run(case, rng, events, method):
    """Run a job and return its history, and its `differences` from a single process."""
    make, arguments = CASES[case]
    dividing = DIVIDING if make is LoaderFeed else None
    with Coordinator(rng, method, make, arguments, dividing=dividing) as coordinator:
        history = coordinator.run(events)
    in_rank_order = "arcs" not in arguments and "squares" not in arguments
    return history, differences(history, expected(make, arguments), in_rank_order)
