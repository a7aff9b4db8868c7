"""The state of a session in a checkpoint, besides tensors: running sums, counts, and the parts of each rank.

All fields are checked before anything changes.

A checkpoint keeps each rank's random generators, its source's position if positions differ (as with
``filling="cntk"``), and its part of the sums. With another number of ranks the sums are combined, generators are seeded
again (`feedline.train.random_states`), and positions of sources have to be equal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from feedline.collective.ranks import Ranks
from feedline.errors import StateError
from feedline.runs.fields import maybe, real, several, table, whole
from feedline.train.evaluation import SessionSource
from feedline.train.progress import Sums
from feedline.train.random_states import random_state
from feedline.train.summary import NOTHING, Summary, check_list, plus, summary_from_json, summary_to_json

#: Counts of `RunProgress` that are saved under their names.
_COUNTS = ("samples", "minibatches", "sweeps")


@dataclass(eq=False, repr=False)
class RunProgress:
    """Progress of a run.

    Attributes:
        samples, minibatches, sweeps: numbers trained so far.
        scale: factor of the minibatch size.
        stopped: whether the training has ended.
        progress_done: number of progress spans that were reported.
        span_sums: sums since the last progress span.
        validations_done: number of validations.
        validated_at: number of minibatches before the last validation. -1 if there was none.
        validated: result of the last validation.
        epoch_sum: sums since the last end of an epoch.
    """

    samples: int = 0
    minibatches: int = 0
    sweeps: int = 0
    scale: float = 1.0
    stopped: bool = False
    progress_done: int = 0
    span_sums: Sums = field(default_factory=Sums)
    validations_done: int = 0
    validated_at: int = -1
    validated: Summary | None = None
    epoch_sum: Summary = NOTHING


class SavedSession(NamedTuple):
    """A session's part of a checkpoint.

    Attributes:
        progress: progress of this rank.
        trainer, source: states of trainer and source.
        validation: state of the validation's source, or None.
        controllers: class name and state of each controller.
        random: states of generators, by rank.
    """

    progress: RunProgress
    trainer: dict[str, Any]
    source: dict[str, Any]
    validation: dict[str, Any] | None
    controllers: list[tuple[str, Any]]
    random: Any


def to_json(
    progress: RunProgress,
    source: SessionSource,
    validation: SessionSource | None,
    controllers: Sequence[Any],
    ranks: Ranks,
    splits_sums: bool,
) -> dict[str, Any]:
    """Return the state of a session without its trainer. A collective call.

    Args:
        progress: progress of this rank.
        source: training source.
        validation: validation source, or None.
        controllers: controllers, in order.
        ranks: ranks of the session.
        splits_sums: whether each rank's sums are over its part alone.
    """
    since, epoch = progress.span_sums.to_json(), summary_to_json(progress.epoch_sum)
    parts = ranks.gather_json({"random": random_state(), "source": source.state_dict(), "since": since, "epoch": epoch})
    validated = None if progress.validated is None else summary_to_json(progress.validated)
    state = {
        **{name: getattr(progress, name) for name in (*_COUNTS, "scale", "stopped")},
        "source": parts[0]["source"],
        "validation": None if validation is None else validation.state_dict(),
        "progress": [progress.progress_done, parts[0]["since"]],
        "validated": [progress.validations_done, progress.validated_at, validated],
        "epoch": parts[0]["epoch"],
        "controllers": [[type(controller).__name__, controller.state_dict()] for controller in controllers],
        "random": [part.pop("random") for part in parts],
    }
    if len(parts) > 1:
        state["ranks"] = {"together": not splits_sums, "parts": parts}
    return state


def from_json(state: Mapping[str, Any], ranks: Ranks, splits_sums: bool) -> SavedSession:
    """Return this rank's part of the result of `to_json`.

    Raises:
        ValueError, KeyError, TypeError: the state is not one of a session.
        StateError: positions of sources differed by rank, and the number of ranks has changed.
    """
    parts = [{"source": state["source"], "since": state["progress"][1], "epoch": state["epoch"]}]
    combined = True
    if "ranks" in state:
        parts, combined = several(_object, state["ranks"]["parts"], "ranks.parts"), state["ranks"]["together"]
    sums = [Sums.from_json(part["since"], "progress") for part in parts]
    epochs = [summary_from_json(part["epoch"], "epoch") for part in parts]
    index = ranks.rank if len(parts) == ranks.count else 0
    if len(parts) not in (1, ranks.count) and any(part["source"] != parts[0]["source"] for part in parts):
        what = "this run's sources had different positions by rank: continue with the same number of ranks"
        raise StateError(what, saved={"ranks": len(parts)}, current={"ranks": ranks.count})
    since, epoch = sums[index], epochs[index]
    if not splits_sums or combined or len(parts) != ranks.count:
        # Each rank continues with the sums of all. If each has a part, rank 0 continues with all sums so far.
        holds_sums = not splits_sums or ranks.rank == 0
        since.summary = _combine([part.summary for part in sums], combined) if holds_sums else NOTHING
        epoch = _combine(epochs, combined) if holds_sums else NOTHING
    done, _ = check_list(state["progress"], 2, "progress")
    validations, at, validated = check_list(state["validated"], 3, "validated")
    scale, stopped = real(state["scale"], "scale"), state["stopped"]
    if not scale > 0 or type(stopped) is not bool or (at != -1 and type(at) is not int):
        raise ValueError(f"expected a scale above 0, and whether it was stopped, got {scale!r} and {stopped!r:.40}")
    progress = RunProgress(
        **{name: whole(state[name], name) for name in _COUNTS},
        scale=scale,
        stopped=stopped,
        progress_done=whole(done, "progress"),
        span_sums=since,
        validations_done=whole(validations, "validated"),
        validated_at=at if at == -1 else whole(at, "validated"),
        validated=maybe(summary_from_json, validated, "validated"),
        epoch_sum=epoch,
    )
    controllers = check_list(state["controllers"], None, "controllers")
    return SavedSession(
        progress,
        _object(state["trainer"], "trainer"),
        _object(parts[index]["source"], "source"),
        maybe(_object, state["validation"], "validation"),
        [tuple(check_list(pair, 2, "controllers")) for pair in controllers],
        state["random"],
    )


def load_all(targets: Sequence[tuple[Any, Any]], last: Callable[[], None]) -> None:
    """Load states into objects, and then call ``last``. An error undoes everything.

    Args:
        targets: objects with ``state_dict`` and ``load_state_dict``, each with the state to load.
        last: function that changes nothing if it fails.
    """
    before = [target.state_dict() for target, _ in targets]
    tried = 0
    try:
        for target, state in targets:
            tried += 1
            target.load_state_dict(state)
        last()
    except BaseException:
        for (target, _), old in list(zip(targets, before, strict=True))[:tried]:
            with contextlib.suppress(Exception):  # the first error is the one to report
                target.load_state_dict(old)
        raise


def _combine(parts: Sequence[Summary], combined: bool) -> Summary:
    """Return the sums of all ranks, given the sums of each rank: over all ranks if ``combined``, else over its part."""
    total = NOTHING
    for part in parts[:1] if combined else parts:
        total = plus(total, part)
    return total


def _object(value: Any, name: str) -> dict[str, Any]:
    return table(lambda part, _: part, value, name)
