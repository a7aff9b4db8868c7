"""What may be adjusted at the end of an epoch: learning rate, minibatch size, which model is kept.

A controller sees the sums of the epoch's training and of the validation made at its end, and acts on the run. Its
state is in the checkpoints, so a restored run adjusts as the one that never stopped.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from feedline.errors import StateError, shown
from feedline.runs.fields import real, whole
from feedline.train.checkpoint import Checkpoints
from feedline.train.session import TrainingSession
from feedline.train.summary import Summary
from feedline.train.trainer import check_model, load_model, uncompiled

_log = logging.getLogger("feedline")


class ReduceOnPlateau:
    """Lowers the learning rate when the criterion stalls.

    The factor applies to every learner's schedule as it stands, and to what the schedule says later.

    Args:
        factor: the rate is multiplied by it, between 0 and 1.
        patience: epochs without an improvement that are waited for.
        least: an improvement is smaller than the best by more than this share of it.
        stop_below: end the training once all factors together fall below this; None: never.
        watch: ``"loss"`` or ``"metric"``, of the validation if there is one, else of the training.
    """

    def __init__(
        self,
        factor: float = 0.5,
        patience: int = 1,
        least: float = 0.0,
        stop_below: float | None = None,
        watch: str = "loss",
    ) -> None:
        if not 0 < factor < 1 or patience < 0 or least < 0:
            raise ValueError(
                f"expected 0 < factor < 1, patience >= 0 and least >= 0, got {factor}, {patience} and {least}"
            )
        self.factor, self.patience, self.least, self.stop_below = factor, patience, least, stop_below
        self.watch = _watched(watch)
        self.best: float | None = None
        self.stalled = 0
        self.product = 1.0

    def on_epoch_end(self, run: TrainingSession, training: Summary, validation: Summary | None) -> None:
        """Count, and lower the rate when patience is out."""
        value = _value(self.watch, training, validation)
        if _better(value, self.best, self.least):
            self.best, self.stalled = value, 0
            return
        self.stalled += 1
        if self.stalled <= self.patience:
            return
        self.stalled = 0
        self.product *= self.factor
        for learner in run.trainer.learners:
            learner.scale *= self.factor
        _log.info("%s has not improved on %s: learning rates times %g", self.watch, self.best, self.factor)
        if self.stop_below is not None and self.product < self.stop_below:
            run.stop()

    def state_dict(self) -> dict[str, Any]:
        """What is watched, its best value, epochs stalled, product of factors."""
        return {"watch": self.watch, "best": self.best, "stalled": self.stalled, "product": self.product}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on; the learners' own states hold their factors."""
        best = _best(self, state)
        stalled, product = (_of(self, state, key) for key in ("stalled", "product"))
        try:
            stalled, product = whole(stalled, "stalled"), float(real(product, "product"))
        except ValueError as error:
            raise StateError(f"expected a state of {type(self).__name__}, got another number: {error}") from error
        self.best, self.stalled, self.product = best, stalled, product


class GrowMinibatch:
    """Grows the minibatch while the loss allows: fewer, larger updates when they lose nothing.

    After an epoch whose watched value improved on the best by at least ``least`` of it, the factor on the minibatch
    size is multiplied by ``factor``; after one that got worse it is divided by it, never below 1.

    Args:
        factor: above 1.
        limit: largest factor on the run's minibatch size.
        least: share of the best value that an improvement must reach.
        watch: ``"loss"`` or ``"metric"``, of the validation if there is one, else of the training.
    """

    def __init__(self, factor: float = 2.0, limit: float = 16.0, least: float = 0.0, watch: str = "loss") -> None:
        if not factor > 1 or limit < 1 or least < 0:
            raise ValueError(f"expected factor > 1, limit >= 1 and least >= 0, got {factor}, {limit} and {least}")
        self.factor, self.limit, self.least, self.watch = factor, limit, least, _watched(watch)
        self.best: float | None = None

    def on_epoch_end(self, run: TrainingSession, training: Summary, validation: Summary | None) -> None:
        """Compare, and scale."""
        value = _value(self.watch, training, validation)
        if self.best is None:
            self.best = None if math.isnan(value) else value
        elif value <= self.best - abs(self.best) * self.least:
            self.best = value
            run.scale = min(run.scale * self.factor, self.limit)
        else:
            run.scale = max(run.scale / self.factor, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """What is watched, and its best value; the factor itself is the run's."""
        return {"watch": self.watch, "best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on."""
        self.best = _best(self, state)


class KeepBest:
    """Keeps the model of the best epoch as a checkpoint of its own; rank 0 writes it.

    Args:
        folder: where, another one than that of the run's checkpoints; it holds one checkpoint, which
            ``feedline.train.checkpoint.load`` reads.
        watch: ``"loss"`` or ``"metric"``, of the validation if there is one, else of the training.
    """

    def __init__(self, folder: str | os.PathLike[str], watch: str = "loss") -> None:
        self._checkpoints, self.watch = Checkpoints(folder, keep=1), _watched(watch)
        self.best: float | None = None

    def on_epoch_end(self, run: TrainingSession, training: Summary, validation: Summary | None) -> None:
        """Save the model if it is the best so far."""
        value = _value(self.watch, training, validation)
        if _better(value, self.best):
            self.best = value
            if run.ranks.rank == 0:
                self._checkpoints.save(run.samples, uncompiled(run.trainer.model).state_dict(), {self.watch: value})
            run.ranks.barrier()  # nobody goes on to read it before it is there

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return self._checkpoints.folder

    @property
    def own_folder(self) -> Path:
        """Where no other session may write."""
        return self.folder

    def restore(self, model: torch.nn.Module) -> float:
        """Load the best model's tensors into ``model``; returns the value it had.

        Raises:
            StateError: none was kept, or one of another model; the model is as it was then.
        """
        found = self._checkpoints.latest()
        if found is None:
            raise StateError(f"expected a kept model in {self._checkpoints.folder}, got none")
        value = found.state.get(self.watch)
        if type(value) is not float:
            raise StateError(
                f"expected a model kept for its {self.watch} in {found.path}",
                saved=found.state,
                current={self.watch: "a number"},
            )
        check_model(model, found.tensors)
        load_model(model, found.tensors)
        return value

    def state_dict(self) -> dict[str, Any]:
        """What is watched, and its best value."""
        return {"watch": self.watch, "best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on."""
        self.best = _best(self, state)


def _watched(watch: str) -> str:
    if watch not in ("loss", "metric"):
        raise ValueError(f'expected watch to be "loss" or "metric", got {watch!r}')
    return watch


def _value(watch: str, training: Summary, validation: Summary | None) -> float:
    summary = validation if validation is not None and validation.samples else training
    value = summary.loss if watch == "loss" else summary.metric
    if value is None:
        raise ValueError("expected a metric to watch, got a trainer without one")
    return value


def _better(value: float, best: float | None, least: float = 0.0) -> bool:
    """Whether it improves on the best; what is not a number never does."""
    return not math.isnan(value) and (best is None or value < best - abs(best) * least)


def _best(controller: ReduceOnPlateau | GrowMinibatch | KeepBest, state: Mapping[str, Any]) -> float | None:
    """The saved best value, if it is of what the controller watches."""
    best, saved = _of(controller, state, "best"), _of(controller, state, "watch")
    if best is not None and (type(best) is not float or math.isnan(best)):
        raise StateError(f"expected a state of {type(controller).__name__} with a best value, got {shown(best, 40)}")
    if saved != controller.watch:
        raise StateError(
            f"expected a state of {type(controller).__name__} that watches the same",
            saved={"watch": saved},
            current={"watch": controller.watch},
        )
    return best


def _of(controller: object, state: Mapping[str, Any], key: str) -> Any:
    if not isinstance(state, Mapping) or key not in state:
        raise StateError(f"expected a state of {type(controller).__name__}, it lacks `{key}`")
    return state[key]
