"""Controllers, which act at the end of an epoch: they change the rate or minibatch size, or keep the best model.

A controller receives the sums of the training in an epoch, and of the validation at its end. Its state is in the
checkpoints, so that a restored run is adjusted like an uninterrupted one.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from typing import Any

import torch

from feedline.errors import StateError, shown
from feedline.runs.fields import real, whole
from feedline.train.checkpoint import Checkpoints
from feedline.train.session import TrainingSession
from feedline.train.summary import Summary
from feedline.train.trainer import check_model, load_model
from feedline.train.unwrap import unwrap_model

_log = logging.getLogger("feedline")


class _Watcher:
    """Controller that watches a criterion, and keeps its best value.

    Args:
        watch: ``"loss"`` or ``"metric"``, of the validation if there is one, else of the training.
    """

    def __init__(self, watch: str) -> None:
        if watch not in ("loss", "metric"):
            raise ValueError(f'expected watch to be "loss" or "metric", got {watch!r}')
        self.watch = watch
        self.best: float | None = None

    def _watched_value(self, training: Summary, validation: Summary | None) -> float:
        summary = validation if validation is not None and validation.samples else training
        value = summary.loss if self.watch == "loss" else summary.metric
        if value is None:
            raise ValueError("expected a metric to watch, got a trainer without one")
        return value

    def _is_better(self, value: float, least: float = 0.0) -> bool:
        """Return whether a value improves on the best. NaN never does."""
        return not math.isnan(value) and (self.best is None or value < self.best - abs(self.best) * least)

    def state_dict(self) -> dict[str, Any]:
        """Return the watched criterion and its best value."""
        return {"watch": self.watch, "best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state. The controller's changes of the run stay."""
        self.best = self._best_of(state)

    def _best_of(self, state: Mapping[str, Any]) -> float | None:
        """Return the saved best value. Raises StateError unless it is of the watched criterion."""
        best, saved = self._entry(state, "best"), self._entry(state, "watch")
        if best is not None and (type(best) is not float or math.isnan(best)):
            raise StateError(f"expected a state of {type(self).__name__} with a best value, got {shown(best, 40)}")
        if saved != self.watch:
            what = f"expected a state of {type(self).__name__} with the same criterion"
            raise StateError(what, saved={"watch": saved}, current={"watch": self.watch})
        return best

    def _entry(self, state: Mapping[str, Any], key: str) -> Any:
        if not isinstance(state, Mapping) or key not in state:
            raise StateError(f"expected a state of {type(self).__name__}, got one without `{key}`")
        return state[key]


class ReduceOnPlateau(_Watcher):
    """Lower the learning rate when the criterion stalls.

    The factor applies to every learner's schedule, now and at later positions.

    Args:
        factor: factor of the rate, between 0 and 1.
        patience: number of epochs to wait for an improvement.
        least: fraction of the best value by which a value has to be smaller to count as an improvement.
        stop_below: product of all factors below which the training ends. None means never.
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
            raise ValueError(f"expected 0 < factor < 1, patience >= 0, least >= 0, got {factor}, {patience}, {least}")
        super().__init__(watch)
        self.factor, self.patience, self.least, self.stop_below = factor, patience, least, stop_below
        self.stalled = 0
        self.product = 1.0

    def on_epoch_end(self, run: TrainingSession, training: Summary, validation: Summary | None) -> None:
        """Lower the rate after too many epochs without an improvement."""
        value = self._watched_value(training, validation)
        if self._is_better(value, self.least):
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
        """Return the watched criterion, its best value, the epochs stalled, and the product of factors."""
        return {**super().state_dict(), "stalled": self.stalled, "product": self.product}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state. The learners' states contain their factors."""
        best = self._best_of(state)
        stalled, product = (self._entry(state, key) for key in ("stalled", "product"))
        try:
            stalled, product = whole(stalled, "stalled"), float(real(product, "product"))
        except ValueError as error:
            raise StateError(f"expected a state of {type(self).__name__}, got a malformed number: {error}") from error
        self.best, self.stalled, self.product = best, stalled, product


class GrowMinibatch(_Watcher):
    """Grow the minibatch while the loss improves: fewer, larger updates.

    After an epoch whose watched value improved on the best by at least ``least`` of it, the scale of the minibatch size
    is multiplied by ``factor``. After a worse epoch it is divided by it, to no less than 1.

    Args:
        factor: factor of the scale, above 1.
        limit: largest scale of the run's minibatch size.
        least: fraction of the best value that an improvement must reach.
        watch: ``"loss"`` or ``"metric"``, of the validation if there is one, else of the training.
    """

    def __init__(self, factor: float = 2.0, limit: float = 16.0, least: float = 0.0, watch: str = "loss") -> None:
        if not factor > 1 or limit < 1 or least < 0:
            raise ValueError(f"expected factor > 1, limit >= 1 and least >= 0, got {factor}, {limit} and {least}")
        super().__init__(watch)
        self.factor, self.limit, self.least = factor, limit, least

    def on_epoch_end(self, run: TrainingSession, training: Summary, validation: Summary | None) -> None:
        """Scale the minibatch size."""
        value = self._watched_value(training, validation)
        if self.best is None:
            self.best = None if math.isnan(value) else value
        elif value <= self.best - abs(self.best) * self.least:
            self.best = value
            run.scale = min(run.scale * self.factor, self.limit)
        else:
            run.scale = max(run.scale / self.factor, 1.0)


class KeepBest(_Watcher):
    """Keep the model of the best epoch in a separate checkpoint, which rank 0 writes.

    Args:
        folder: folder of that checkpoint, not the folder of the run's checkpoints. ``feedline.train.checkpoint.load``
            reads it.
        watch: ``"loss"`` or ``"metric"``, of the validation if there is one, else of the training.

    Attributes:
        folder: folder of the checkpoint.
        own_folder: the same folder, to which no other session may write.
    """

    def __init__(self, folder: str | os.PathLike[str], watch: str = "loss") -> None:
        super().__init__(watch)
        self._checkpoints = Checkpoints(folder, keep=1)
        self.folder = self.own_folder = self._checkpoints.folder

    def on_epoch_end(self, run: TrainingSession, training: Summary, validation: Summary | None) -> None:
        """Save the model if it is the best so far."""
        value = self._watched_value(training, validation)
        if self._is_better(value):
            self.best = value
            model = unwrap_model(run.trainer.model)
            run.ranks.on_rank_0(lambda: self._checkpoints.save(run.samples, model.state_dict(), {self.watch: value}))

    def restore(self, model: torch.nn.Module) -> float:
        """Load the best model's tensors into ``model``. Return its watched value.

        Raises:
            StateError: no model was kept, or its architecture differs. The model is unchanged.
        """
        checkpoint = self._checkpoints.latest()
        if checkpoint is None:
            raise StateError(f"expected a kept model in {self._checkpoints.folder}, got none")
        value = checkpoint.state.get(self.watch)
        if type(value) is not float:
            what = f"expected a model kept for its {self.watch} in {checkpoint.path}"
            raise StateError(what, saved=checkpoint.state, current={self.watch: "a number"})
        check_model(model, checkpoint.tensors)
        load_model(model, checkpoint.tensors)
        return value
