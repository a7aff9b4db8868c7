"""The minibatches of a run, computed again from the numbers in its log: places, sizes and fingerprints.

No data is read. Each span of steps between two records is planned again with the source's own packer, and must end
with the fingerprint that the log has: a hash of every sequence up to there, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.errors import DataError, StateError, shown
from feedline.feed.arguments import Arcs
from feedline.feed.protocol import Deserializer, RandomAccess, can, check_seed, sources_of
from feedline.feed.source import MinibatchSource
from feedline.feed.timeline import ORDERS, Window

Ints = NDArray[np.int64]


class LoggedFeed(NamedTuple):
    """The record of the feed in a log at one place.

    Attributes:
        step: minibatches before it.
        size: size of the minibatches after it, in samples.
        state: state of the source.
    """

    step: int
    size: int
    state: Mapping[str, Any]


class AuditedStep(NamedTuple):
    """A minibatch of the run.

    Attributes:
        step: its number, from 0.
        ids: int64 (n,), ordinals of the sequences of all ranks, in order.
        sources: int64 (n,), number of the corpus that each is from. None if the corpus has no parts.
        chunks: int64 (n,), chunk of each with its sweep, see `PlannedMinibatch`. None if chunk numbers carry no sweeps.
        samples: samples of all ranks.
    """

    step: int
    ids: Ints
    sources: Ints | None
    chunks: Ints | None
    samples: int


def audit_steps(corpus: Deserializer, records: Sequence[LoggedFeed]) -> Iterator[AuditedStep]:
    """Yield the steps between the first record and the last.

    Args:
        corpus: the corpus of the run.
        records: by ascending steps.

    Raises:
        StateError: the run was fed from other data, or under other declarations.
        DataError: the computed minibatches differ from the log.
    """
    if not records:
        return
    source = _source_of(corpus, records[0].state)
    current = str(source.state_dict()["corpus"])
    for a, b in pairwise(records):
        # Weights that were changed on the way are in the later state, from the place on at which they hold.
        later = {key: b.state[key] for key in ("stages",) if key in b.state}
        if b.state.get("corpus") != current:
            source.load_state_dict(b.state)  # refuses the state of other data
        source.load_state_dict({**a.state, **later, **_versions(b.state, current)})
        steps = []
        fingerprint = None if a.state.get("fingerprint") is None else int(a.state["fingerprint"], 16)
        samples = int(a.state["samples"])
        for planned in islice(source.plan(a.size), b.step - a.step) if b.step > a.step else ():
            ids = planned.ids
            sources, step = sources_of(corpus, ids), a.step + planned.step
            steps.append(AuditedStep(step, ids, sources, planned.chunks, planned.global_samples))
            samples += planned.global_samples
            if fingerprint is not None and len(ids):
                fingerprint = int(_native.fingerprint(fingerprint, ids)[-1])
        computed = None if fingerprint is None else f"{fingerprint:016x}"
        logged = b.state.get("fingerprint")
        differs = None not in (computed, logged) and computed != logged
        if len(steps) != b.step - a.step or samples != b.state["samples"] or differs:
            raise DataError(
                f"expected step {b.step} of the run after {b.state['samples']} samples with fingerprint "
                f"{logged}, got {samples} and {computed} by minibatches of {a.size} samples from step "
                f"{a.step} on",
                hint="sizes changed in between: log every minibatch (progress=fl.minibatches(1))",
            )
        yield from steps


def _versions(state: Mapping[str, Any], current: str) -> dict[str, Any]:
    """Return the entries of a state that name the data up to it, if the data has grown since."""
    if state.get("corpus") in (None, current):
        return {key: state[key] for key in ("corpus", "versions") if key in state}
    sweep = int(state["sweep"])
    before = [row for row in state.get("versions", [[0, state["corpus"], state.get("sequences")]]) if row[0] <= sweep]
    return {"corpus": current, "versions": [*before, [sweep + 1, current]]}


def _source_of(corpus: Deserializer, state: Mapping[str, Any]) -> MinibatchSource:
    """Return a source with the settings of a state.

    Raises:
        StateError: the steps after ``state`` cannot be planned.
    """
    try:
        seed, how, order = check_seed(int(state["seed"], 16)), state["shuffle"], state["order"]
        shuffle: Any = bool(how)
        if how == "all":
            shuffle = "whole" if can(corpus, RandomAccess) else True
        elif isinstance(how, Mapping):
            shuffle = Window(**how)
        arcs = None if state.get("arcs") is None else Arcs(state["arcs"])
        if state["filling"] != "global" or "lanes" in state:
            raise ValueError("expected whole sequences of global minibatches, got lanes, or a filling by each rank")
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"expected the state of a source in the log, got {shown(state, 200)}: {error}",
            hint="a training session logs it by `JsonLines`",
        ) from error
    return MinibatchSource(
        corpus,
        seed=seed,
        shuffle=shuffle,
        order=arcs if arcs is not None else order if order in ORDERS else "feedline",
        partition=(0, 1),
        on_error="skip",
    )
