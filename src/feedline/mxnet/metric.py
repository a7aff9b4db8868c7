"""`mxnet.metric`: metrics over batches.

``update(labels, predictions)`` accepts lists of NDArrays; ``get()`` returns name and value, NaN before the first
update. All metrics are computed by NumPy in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as _numpy

from feedline.mxnet._names import names_of

__all__, __getattr__ = names_of(__name__)


def _array(given: Any) -> Any:
    return given.asnumpy() if hasattr(given, "asnumpy") else _numpy.asarray(given)


def check_label_shapes(labels: Any, preds: Any, wrap: bool = False, shape: bool = False) -> tuple[Any, Any]:
    """Check and return labels and predictions, in lists if ``wrap``.

    Raises:
        ValueError: numbers of labels and predictions differ, or, with ``shape``, their shapes.
    """
    mine, other = (labels.shape, preds.shape) if shape else (len(labels), len(preds))
    if mine != other:
        raise ValueError(f"Shape of labels {mine} does not match shape of predictions {other}")
    if wrap:
        labels = labels if isinstance(labels, (list, tuple)) else [labels]
        preds = preds if isinstance(preds, (list, tuple)) else [preds]
    return labels, preds


class EvalMetric:
    """Base class of metrics: a sum and a count; subclasses define what a pair of label and prediction adds.

    Attributes:
        name: name of the metric.
        output_names: predictions that `update_dict` uses; None: all.
        label_names: labels that `update_dict` uses; None: all.
        sum_metric: sum so far.
        num_inst: count so far.
    """

    def __init__(
        self, name: str, output_names: Sequence[str] | None = None, label_names: Sequence[str] | None = None
    ) -> None:
        self.name, self.output_names, self.label_names = name, output_names, label_names
        self.reset()

    def reset(self) -> None:
        """Reset sum and count."""
        self.sum_metric, self.num_inst = 0.0, 0

    def reset_local(self) -> None:
        """Same as `reset`, as there is one sum and one count."""
        self.reset()

    def get_config(self) -> dict[str, Any]:
        """Return class, name and the names that `update_dict` uses."""
        return {
            "metric": type(self).__name__,
            "name": self.name,
            "output_names": self.output_names,
            "label_names": self.label_names,
        }

    def update(self, labels: Any, preds: Any) -> None:
        """Add a batch: a list of labels and a list of predictions."""
        labels, preds = check_label_shapes(labels, preds, wrap=True)
        for label, pred in zip(labels, preds, strict=True):
            total, count = self._measure(_array(label), _array(pred))
            self.sum_metric += float(total)
            self.num_inst += int(count)

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        """Return what a pair adds to the sum and to the count."""
        raise NotImplementedError(f"{type(self).__name__}._measure")

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """Add a batch, by name."""
        preds = [pred[name] for name in self.output_names] if self.output_names is not None else list(pred.values())
        labels = [label[name] for name in self.label_names] if self.label_names is not None else list(label.values())
        self.update(labels, preds)

    def get(self) -> tuple[Any, Any]:
        """Return name and value."""
        return self.name, self.sum_metric / self.num_inst if self.num_inst else math.nan

    def get_name_value(self) -> list[tuple[str, float]]:
        """Return pairs of names and values."""
        name, value = self.get()
        return list(zip(name, value, strict=True)) if isinstance(name, list) else [(name, value)]

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"


class CompositeEvalMetric(EvalMetric):
    """Several metrics as one."""

    def __init__(self, metrics: Sequence[Any] | None = None, name: str = "composite", **names: Any) -> None:
        self.metrics = [create(one) for one in metrics or ()]
        super().__init__(name, **names)

    def add(self, metric: Any) -> None:
        """One more."""
        self.metrics.append(create(metric))

    def get_metric(self, index: int) -> EvalMetric:
        """Return one of the metrics.

        Raises:
            ValueError: the index is out of range.
        """
        if not 0 <= index < len(self.metrics):
            raise ValueError(f"Metric index {index} is out of range 0 and {len(self.metrics)}")
        return self.metrics[index]

    def reset(self) -> None:
        """See `EvalMetric.reset`."""
        for metric in self.metrics:
            metric.reset()

    def update(self, labels: Any, preds: Any) -> None:
        """See `EvalMetric.update`."""
        for metric in self.metrics:
            metric.update(labels, preds)

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """See `EvalMetric.update_dict`."""
        for metric in self.metrics:
            metric.update_dict(label, pred)

    def get(self) -> tuple[list[str], list[float]]:
        """Return names and values."""
        pairs = [pair for metric in self.metrics for pair in metric.get_name_value()]
        return [name for name, _ in pairs], [value for _, value in pairs]


class Accuracy(EvalMetric):
    """Fraction of predictions whose largest score is the label's; predictions of the labels' shape are classes."""

    def __init__(self, axis: int = 1, name: str = "accuracy", **names: Any) -> None:
        super().__init__(name, **names)
        self.axis = axis

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        classes = pred.argmax(self.axis) if pred.shape != label.shape else pred
        label, classes = label.astype("int64").ravel(), classes.astype("int64").ravel()
        check_label_shapes(label, classes, shape=True)
        return (label == classes).sum(), label.size


class TopKAccuracy(EvalMetric):
    """Fraction of labels among the ``top_k`` largest scores.

    Raises:
        ValueError: ``top_k`` below 2.
    """

    def __init__(self, top_k: int = 1, name: str = "top_k_accuracy", **names: Any) -> None:
        if top_k < 2:
            raise ValueError(f"Please use Accuracy if top_k is no more than 1, got {top_k}")
        super().__init__(f"{name}_{top_k}", **names)
        self.top_k = top_k

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        best = _numpy.argsort(-pred.astype("float32"), axis=1, kind="stable")[:, : self.top_k]
        return (best == label.astype("int64").reshape(-1, 1)).sum(), len(pred)


class F1(EvalMetric):
    """Harmonic mean of precision and recall of class 1 of two, averaged over batches, or over all (``"micro"``).

    Raises:
        ValueError: an unknown average, or, in updates, labels other than 0 and 1.
    """

    def __init__(self, name: str = "f1", average: str = "macro", **names: Any) -> None:
        if average not in ("macro", "micro"):
            raise ValueError(f"expected an average macro or micro, got {average!r}")
        self.average = average
        super().__init__(name, **names)

    def reset(self) -> None:
        """See `EvalMetric.reset`."""
        super().reset()
        self._counts = _numpy.zeros(3)

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        label, said = label.astype("int64").ravel(), pred.argmax(1)
        if not set(_numpy.unique(label)) <= {0, 1}:
            raise ValueError(f"F1 currently only supports binary classification, got {_numpy.unique(label)}")
        counts = _numpy.array([(said & label).sum(), (said & (1 - label)).sum(), ((1 - said) & label).sum()])
        if self.average == "macro":
            return _f1(counts), 1
        self._counts = self._counts + counts
        self.sum_metric, self.num_inst = 0.0, 0
        return _f1(self._counts) * len(label), len(label)


def _f1(counts: Any) -> float:
    right, wrong, missed = counts
    precision = right / (right + wrong) if right + wrong else 0.0
    recall = right / (right + missed) if right + missed else 0.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


class _Regression(EvalMetric):
    """Mean over batches of an error of each batch."""

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        label = label.reshape(len(label), 1) if label.ndim == 1 else label
        pred = pred.reshape(len(pred), 1) if pred.ndim == 1 else pred
        return self._error(label.astype("float64") - pred), 1

    def _error(self, difference: Any) -> float:
        """Return the error of a batch."""
        raise NotImplementedError(f"{type(self).__name__}._error")


class MAE(_Regression):
    """Mean absolute error of each batch, averaged."""

    def __init__(self, name: str = "mae", **names: Any) -> None:
        super().__init__(name, **names)

    def _error(self, difference: Any) -> float:
        return float(abs(difference).mean())


class MSE(_Regression):
    """Mean squared error of each batch, averaged."""

    def __init__(self, name: str = "mse", **names: Any) -> None:
        super().__init__(name, **names)

    def _error(self, difference: Any) -> float:
        return float((difference**2).mean())


class RMSE(_Regression):
    """Root of the mean squared error of each batch, averaged."""

    def __init__(self, name: str = "rmse", **names: Any) -> None:
        super().__init__(name, **names)

    def _error(self, difference: Any) -> float:
        return math.sqrt((difference**2).mean())


class CrossEntropy(EvalMetric):
    """Mean of ``-log(p + eps)`` of the label's probability."""

    def __init__(self, eps: float = 1e-12, name: str = "cross-entropy", **names: Any) -> None:
        super().__init__(name, **names)
        self.eps = eps

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        label, chances = _chances(label, pred)
        return float(-_numpy.log(chances + self.eps).sum()), len(label)


def _chances(label: Any, rows: Any, ignored: Any = None) -> tuple[Any, Any]:
    """Return the labels that are not ignored, and their probabilities in float64."""
    label = label.ravel().astype("int64")
    if len(label) != len(rows):
        raise ValueError(f"expected a label for each of {len(rows)} rows, got {len(label)}")
    kept = _numpy.flatnonzero(label != ignored)
    return label[kept], rows[kept, label[kept]].astype("float64")


class NegativeLogLikelihood(CrossEntropy):
    """As `CrossEntropy`."""

    def __init__(self, eps: float = 1e-12, name: str = "nll-loss", **names: Any) -> None:
        super().__init__(eps, name, **names)


class Perplexity(EvalMetric):
    """Exponential of the mean of ``-log(p)`` of the label's probability.

    Args:
        ignore_label: label to ignore; None: none.
        axis: axis of the classes; only the last one.
        name: name of the metric.
        names: see `EvalMetric`.
    """

    def __init__(self, ignore_label: int | None, axis: int = -1, name: str = "perplexity", **names: Any) -> None:
        super().__init__(name, **names)
        self.ignore_label, self.axis = ignore_label, axis

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        rows = _numpy.moveaxis(pred, self.axis, -1).reshape(-1, pred.shape[self.axis])
        label, chances = _chances(label, rows, self.ignore_label)
        return float(-_numpy.log(_numpy.maximum(chances, 1e-10)).sum()), len(label)

    def get(self) -> tuple[str, float]:
        """Return name and value."""
        return self.name, math.exp(self.sum_metric / self.num_inst) if self.num_inst else math.nan


class Loss(EvalMetric):
    """Mean of the predictions; labels are ignored."""

    def __init__(self, name: str = "loss", **names: Any) -> None:
        super().__init__(name, **names)

    def update(self, labels: Any, preds: Any) -> None:
        """See `EvalMetric.update`."""
        for pred in preds if isinstance(preds, (list, tuple)) else [preds]:
            self.sum_metric += float(_array(pred).sum())
            self.num_inst += int(_array(pred).size)


class CustomMetric(EvalMetric):
    """Mean over batches of ``feval(label, prediction)``, which gets NumPy arrays and returns a number or (sum, count).

    Attributes:
        allow_extra_outputs: whether there may be more predictions than labels; only the first are used.
    """

    def __init__(
        self,
        feval: Callable[[Any, Any], Any],
        name: str | None = None,
        allow_extra_outputs: bool = False,
        **names: Any,
    ) -> None:
        own = getattr(feval, "__name__", "custom")
        super().__init__(name or (f"custom({own})" if "<" in own else own), **names)
        self._feval, self.allow_extra_outputs = feval, allow_extra_outputs

    def update(self, labels: Any, preds: Any) -> None:
        """See `EvalMetric.update`."""
        super().update(labels, preds[: len(labels)] if self.allow_extra_outputs else preds)

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        found = self._feval(label, pred)
        return found if isinstance(found, tuple) else (found, 1)


def np(
    numpy_feval: Callable[[Any, Any], Any], name: str | None = None, allow_extra_outputs: bool = False
) -> CustomMetric:
    """Return a metric by a function of NumPy arrays."""
    return CustomMetric(numpy_feval, name, allow_extra_outputs)


# Each under the name of its class, and some under others.
_METRICS = (Accuracy, CrossEntropy, F1, Loss, MAE, MSE, NegativeLogLikelihood, Perplexity, RMSE, TopKAccuracy)
_CLASSES: dict[str, Callable[..., EvalMetric]] = {
    **{metric.__name__.lower(): metric for metric in _METRICS},
    "acc": Accuracy,
    "ce": CrossEntropy,
    "composite": CompositeEvalMetric,
    "cross-entropy": CrossEntropy,
    "nll_loss": NegativeLogLikelihood,
    "top_k_acc": TopKAccuracy,
    "top_k_accuracy": TopKAccuracy,
}


def create(metric: Any, *args: Any, **kwargs: Any) -> EvalMetric:
    """Return a metric by name, by a function, or of a list; a metric is returned unchanged.

    Raises:
        ValueError: an unknown name.
    """
    if isinstance(metric, EvalMetric):
        return metric
    if callable(metric):
        return CustomMetric(metric, *args, **kwargs)
    if isinstance(metric, (list, tuple)):
        return CompositeEvalMetric([create(one, *args, **kwargs) for one in metric])
    if str(metric).lower() not in _CLASSES:
        raise ValueError(f"expected a metric of {', '.join(sorted(_CLASSES))}, got {metric!r}")
    return _CLASSES[metric.lower()](*args, **kwargs)
