"""What a session's checkpoint says beside tensors: running sums, counts, and what differs by rank.

Every field is checked before it is believed, and nothing has moved when one of them is none of what it should be.

A session of several ranks keeps of each what is its own: random generators, its source's place where places differ (as
with ``filling="cntk"``), and its part of the sums. With another number of ranks sums are put together again, and so are
generators, see `feedline.train.ranks`; sources' places then have to be equal.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from feedline.errors import StateError
from feedline.runs.feeding import Fed, Feeding
from feedline.runs.fields import amount, maybe, real, several, table, whole
from feedline.train.ranks import Ranks, random_state
from feedline.train.trainer import NOTHING, Summary

if TYPE_CHECKING:
    from feedline.train.session import TrainingSession


@dataclass(slots=True)
class Sums:
    """Running sums of a progress span; its time goes on where a checkpoint left it."""

    summary: Summary = NOTHING
    minibatches: int = 0
    waited: float = 0.0
    evaluated: float = 0.0
    saved: float = 0.0
    feeding: Feeding = field(default_factory=Feeding)
    before: float = 0.0
    began: float = 0.0

    def go_on(self) -> None:
        """From now on time counts."""
        self.began = time.perf_counter()

    def add(self, summary: Summary) -> None:
        """A minibatch more."""
        self.summary = plus(self.summary, summary)
        self.minibatches += 1

    def seconds(self) -> float:
        """Wall time in it."""
        return self.before + time.perf_counter() - self.began

    def to_json(self) -> list[Any]:
        """In JSON types."""
        spent = [self.waited, self.evaluated, self.saved, self.seconds()]
        return [summary_to_json(self.summary), self.minibatches, self.feeding.fed().to_json(), *spent]

    @classmethod
    def from_json(cls, data: Any, name: str) -> Sums:
        """Of `to_json`; ValueError otherwise."""
        summary, minibatches, fed, *spent = _listed(data, 7, name)
        waited, evaluated, saving, seconds = (amount(value, f"{name}, seconds") for value in spent)
        try:
            feeding = Feeding(Fed.from_json(fed))
        except (KeyError, TypeError) as error:
            raise ValueError(f"{name}: expected what a feed delivered, got {fed!r:.80}") from error
        count = whole(minibatches, f"{name}, minibatches")
        return cls(summary_from_json(summary, name), count, waited, evaluated, saving, feeding, seconds)


def plus(total: Summary, summary: Summary) -> Summary:
    """Sums of both; what has no samples adds nothing."""
    if summary.samples == 0:
        return total
    return summary if total.samples == 0 else total + summary


def summed(ranks: Ranks, total: Summary, whole: bool = False) -> Summary:
    """The sums of all ranks' parts; where every rank saw all of every minibatch, its own. All ranks have to ask."""
    numbers = [float(total.loss_sum), float(total.metric_sum or 0.0), float(total.metric_sum is not None)]
    everywhere = ranks.gather([float(whole), float(total.samples), *numbers])
    if all(row[0] for row in everywhere):
        return total
    _, samples, loss, metric, measured = (sum(column) for column in zip(*everywhere, strict=True))
    return Summary(loss, metric if measured else None, round(samples)) if samples else NOTHING


def summary_to_json(summary: Summary) -> list[Any]:
    """In JSON types."""
    # Sums are kept in the precision they have: a resumed run adds on to the same numbers.
    metric = None if summary.metric_sum is None else float(summary.metric_sum)
    return [float(summary.loss_sum), metric, summary.samples, summary.updated]


def summary_from_json(data: Any, name: str) -> Summary:
    """Of `summary_to_json`; ValueError otherwise."""
    loss, metric, samples, updated = _listed(data, 4, name)
    if type(updated) is not bool:
        raise ValueError(f"{name}: expected true or false, got {updated!r:.40}")
    found = _number(loss, name), maybe(_number, metric, name), whole(samples, f"{name}, samples")
    return Summary(*found, updated) if samples else NOTHING


class Standing(NamedTuple):
    """How far a run has come; see the attributes of a session."""

    samples: int
    minibatches: int
    sweeps: int
    scale: float
    stopped: bool
    progress_done: int
    since: Sums
    validations_done: int
    validated_at: int
    validated: Summary | None
    epoch_sum: Summary


class Place(NamedTuple):
    """A checkpoint's state, as far as a session itself makes use of it.

    Attributes:
        standing: of this rank.
        trainer, source: their states.
        validation: the source's state, or None.
        controllers: kind and state of each.
        random: states of generators, by rank.
    """

    standing: Standing
    trainer: dict[str, Any]
    source: dict[str, Any]
    validation: dict[str, Any] | None
    controllers: list[tuple[str, Any]]
    random: Any


def to_json(run: TrainingSession, ranks: Ranks, standing: Standing) -> dict[str, Any]:
    """All of a session's state but the trainer's; all ranks have to ask."""
    since, epoch = standing.since.to_json(), summary_to_json(standing.epoch_sum)
    parts = ranks.tell({"random": random_state(), "source": run.source.state_dict(), "since": since, "epoch": epoch})
    validation = run.validation.source if run.validation is not None else None
    validated = standing.validated
    state = {
        "samples": standing.samples,
        "minibatches": standing.minibatches,
        "sweeps": standing.sweeps,
        "scale": standing.scale,
        "stopped": standing.stopped,
        "source": parts[0]["source"],
        "validation": None if validation is None else validation.state_dict(),
        "progress": [standing.progress_done, parts[0]["since"]],
        "validated": [
            standing.validations_done,
            standing.validated_at,
            None if validated is None else summary_to_json(validated),
        ],
        "epoch": parts[0]["epoch"],
        "controllers": [[type(controller).__name__, controller.state_dict()] for controller in run.controllers],
        "random": [part.pop("random") for part in parts],
    }
    if len(parts) > 1:
        state["ranks"] = {"together": not ranks.beside, "parts": parts}
    return state


def from_json(state: Mapping[str, Any], ranks: Ranks) -> Place:
    """The part of this rank in what `to_json` made.

    Raises:
        ValueError, KeyError, TypeError: it is none of that.
        StateError: sources stood at different places, and there are other ranks now.
    """
    parts = [{"source": state["source"], "since": state["progress"][1], "epoch": state["epoch"]}]
    together = True
    if "ranks" in state:
        parts, together = several(_object, state["ranks"]["parts"], "ranks.parts"), state["ranks"]["together"]
    sums = [Sums.from_json(part["since"], "progress") for part in parts]
    epochs = [summary_from_json(part["epoch"], "epoch") for part in parts]
    own = ranks.rank if len(parts) == ranks.count else 0
    if len(parts) not in (1, ranks.count) and any(part["source"] != parts[0]["source"] for part in parts):
        raise StateError(
            "this run's sources stood at a place of its own on every rank: go on with as many ranks",
            saved={"ranks": len(parts)},
            current={"ranks": ranks.count},
        )
    since, epoch = sums[own], epochs[own]
    if not ranks.beside or together or len(parts) != ranks.count:
        # Now every rank has the sums of all; or each has a part, and one of them has everything so far.
        has = not ranks.beside or ranks.rank == 0
        since.summary = _all_of([part.summary for part in sums], together) if has else NOTHING
        epoch = _all_of(epochs, together) if has else NOTHING
    done, _ = _listed(state["progress"], 2, "progress")
    validations, at, validated = _listed(state["validated"], 3, "validated")
    scale, stopped = real(state["scale"], "scale"), state["stopped"]
    if not scale > 0 or type(stopped) is not bool or (at != -1 and type(at) is not int):
        raise ValueError(f"expected a scale above 0, and whether it was stopped, got {scale!r} and {stopped!r:.40}")
    standing = Standing(
        whole(state["samples"], "samples"),
        whole(state["minibatches"], "minibatches"),
        whole(state["sweeps"], "sweeps"),
        scale,
        stopped,
        whole(done, "progress"),
        since,
        whole(validations, "validated"),
        at if at == -1 else whole(at, "validated"),
        None if validated is None else summary_from_json(validated, "validated"),
        epoch,
    )
    controllers = _listed(state["controllers"], None, "controllers")
    return Place(
        standing,
        _object(state["trainer"], "trainer"),
        _object(parts[own]["source"], "source"),
        maybe(_object, state["validation"], "validation"),
        [tuple(_listed(pair, 2, "controllers")) for pair in controllers],
        state["random"],
    )


def load_together(targets: Sequence[tuple[Any, Any]], last: Callable[[], None]) -> None:
    """Load states into objects, and then do ``last``: all of it or, after an error, nothing.

    Args:
        targets: objects with ``state_dict`` and ``load_state_dict``, and what to load.
        last: changes nothing when it fails.
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
            with contextlib.suppress(Exception):  # the first error is the one to be told
                target.load_state_dict(old)
        raise


def _all_of(parts: Sequence[Summary], together: bool) -> Summary:
    """The sums of all ranks, of sums that each rank had of all (``together``) or of its part."""
    total = NOTHING
    for part in parts[:1] if together else parts:
        total = plus(total, part)
    return total


def _number(value: Any, name: str) -> float:
    """A sum, which may have become infinite or no number."""
    return value if type(value) is float else real(value, name)


def _object(value: Any, name: str) -> dict[str, Any]:
    return table(lambda part, _: part, value, name)


def _listed(value: Any, length: int | None, name: str) -> list[Any]:
    if not isinstance(value, list) or length not in (None, len(value)):
        raise ValueError(f"{name}: expected a list{'' if length is None else f' of {length}'}, got {value!r:.80}")
    return value
