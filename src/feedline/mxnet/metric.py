"""`mxnet.metric`: sums over batches, asked for their mean.

``update(labels, predictions)`` takes lists of NDArrays, ``get()`` gives name and value, NaN before the first update.
All are computed by NumPy in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as _numpy

from feedline.mxnet._names import explain

__all__ = [
    "F1",
    "MAE",
    "MSE",
    "RMSE",
    "Accuracy",
    "CompositeEvalMetric",
    "CrossEntropy",
    "CustomMetric",
    "EvalMetric",
    "Loss",
    "NegativeLogLikelihood",
    "Perplexity",
    "TopKAccuracy",
    "check_label_shapes",
    "create",
    "np",
]


def _array(given: Any) -> Any:
    return given.asnumpy() if hasattr(given, "asnumpy") else _numpy.asarray(given)


def check_label_shapes(labels: Any, preds: Any, wrap: bool = False, shape: bool = False) -> tuple[Any, Any]:
    """Labels and predictions, in lists if ``wrap``.

    Raises:
        ValueError: as many labels as predictions are not there; with ``shape``, shapes differ.
    """
    mine, other = (labels.shape, preds.shape) if shape else (len(labels), len(preds))
    if mine != other:
        raise ValueError(f"Shape of labels {mine} does not match shape of predictions {other}")
    if wrap:
        labels = labels if isinstance(labels, (list, tuple)) else [labels]
        preds = preds if isinstance(preds, (list, tuple)) else [preds]
    return labels, preds


class EvalMetric:
    """A sum and a count; subclasses say what one pair of label and prediction adds.

    Attributes:
        name: of the value.
        output_names: which predictions `update_dict` takes; None: all.
        label_names: which labels `update_dict` takes; None: all.
        sum_metric: so far.
        num_inst: so far.
    """

    def __init__(
        self, name: str, output_names: Sequence[str] | None = None, label_names: Sequence[str] | None = None
    ) -> None:
        self.name, self.output_names, self.label_names = name, output_names, label_names
        self.reset()

    def reset(self) -> None:
        """Forget all updates."""
        self.sum_metric, self.num_inst = 0.0, 0

    def update(self, labels: Any, preds: Any) -> None:
        """Add a batch: a list of labels and a list of predictions."""
        labels, preds = check_label_shapes(labels, preds, wrap=True)
        for label, pred in zip(labels, preds, strict=True):
            total, count = self._measure(_array(label), _array(pred))
            self.sum_metric += float(total)
            self.num_inst += int(count)

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        """What one pair adds to the sum and to the count."""
        raise NotImplementedError(f"{type(self).__name__}._measure")

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """Add a batch, by name."""
        preds = [pred[name] for name in self.output_names] if self.output_names is not None else list(pred.values())
        labels = [label[name] for name in self.label_names] if self.label_names is not None else list(label.values())
        self.update(labels, preds)

    def get(self) -> tuple[Any, Any]:
        """Name and value."""
        return self.name, self.sum_metric / self.num_inst if self.num_inst else math.nan

    def get_name_value(self) -> list[tuple[str, float]]:
        """Pairs of names and values."""
        name, value = self.get()
        return list(zip(name, value, strict=True)) if isinstance(name, list) else [(name, value)]

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"


class CompositeEvalMetric(EvalMetric):
    """Several metrics, asked together."""

    def __init__(self, metrics: Sequence[Any] | None = None, name: str = "composite", **names: Any) -> None:
        self.metrics = [create(one) for one in metrics or ()]
        super().__init__(name, **names)

    def add(self, metric: Any) -> None:
        """One more."""
        self.metrics.append(create(metric))

    def get_metric(self, index: int) -> EvalMetric:
        """One of them.

        Raises:
            ValueError: no such number.
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
        """Names and values."""
        pairs = [pair for metric in self.metrics for pair in metric.get_name_value()]
        return [name for name, _ in pairs], [value for _, value in pairs]


class Accuracy(EvalMetric):
    """Share of predictions whose greatest score is at the label; predictions of the labels' shape are classes."""

    def __init__(self, axis: int = 1, name: str = "accuracy", **names: Any) -> None:
        super().__init__(name, **names)
        self.axis = axis

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        classes = pred.argmax(self.axis) if pred.shape != label.shape else pred
        label, classes = label.astype("int64").ravel(), classes.astype("int64").ravel()
        check_label_shapes(label, classes, shape=True)
        return (label == classes).sum(), label.size


class TopKAccuracy(EvalMetric):
    """Share of labels among the ``top_k`` greatest scores.

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
    """Harmonic mean of precision and recall of class 1 of two; the mean over batches, or of all (``"micro"``).

    Raises:
        ValueError: an unknown average, or, in updates, labels besides 0 and 1.
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
    """The mean over batches of an error of each batch."""

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        label = label.reshape(len(label), 1) if label.ndim == 1 else label
        pred = pred.reshape(len(pred), 1) if pred.ndim == 1 else pred
        return self._error(label.astype("float64") - pred), 1

    def _error(self, difference: Any) -> float:
        """Of a batch."""
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
        label = label.ravel().astype("int64")
        if len(label) != len(pred):
            raise ValueError(f"expected a label for each of {len(pred)} rows, got {len(label)}")
        chances = pred[_numpy.arange(len(label)), label].astype("float64")
        return float(-_numpy.log(chances + self.eps).sum()), len(label)


class NegativeLogLikelihood(CrossEntropy):
    """As `CrossEntropy`."""

    def __init__(self, eps: float = 1e-12, name: str = "nll-loss", **names: Any) -> None:
        super().__init__(eps, name, **names)


class Perplexity(EvalMetric):
    """Exponential of the mean of ``-log(p)`` of the label's probability.

    Args:
        ignore_label: labels that do not count; None: all count.
        axis: of the classes; the last one only.
        name: of the value.
        names: see `EvalMetric`.
    """

    def __init__(self, ignore_label: int | None, axis: int = -1, name: str = "perplexity", **names: Any) -> None:
        super().__init__(name, **names)
        self.ignore_label, self.axis = ignore_label, axis

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        label = label.ravel().astype("int64")
        rows = _numpy.moveaxis(pred, self.axis, -1).reshape(-1, pred.shape[self.axis])
        if len(label) != len(rows):
            raise ValueError(f"expected a label for each of {len(rows)} rows, got {len(label)}")
        kept = label != self.ignore_label
        chances = rows[_numpy.arange(len(label))[kept], label[kept]].astype("float64")
        return float(-_numpy.log(_numpy.maximum(chances, 1e-10)).sum()), int(kept.sum())

    def get(self) -> tuple[str, float]:
        """Name and value."""
        return self.name, math.exp(self.sum_metric / self.num_inst) if self.num_inst else math.nan


class Loss(EvalMetric):
    """Mean of the predictions themselves; labels do not count."""

    def __init__(self, name: str = "loss", **names: Any) -> None:
        super().__init__(name, **names)

    def update(self, labels: Any, preds: Any) -> None:
        """See `EvalMetric.update`."""
        for pred in preds if isinstance(preds, (list, tuple)) else [preds]:
            self.sum_metric += float(_array(pred).sum())
            self.num_inst += int(_array(pred).size)


class CustomMetric(EvalMetric):
    """The mean over batches of ``feval(label, prediction)``, arrays of NumPy, which gives a number or (sum, count).

    Attributes:
        allow_extra_outputs: more predictions than labels may come; the first ones count.
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
    """A metric of a function of NumPy arrays."""
    return CustomMetric(numpy_feval, name, allow_extra_outputs)


_CLASSES: dict[str, Callable[..., EvalMetric]] = {
    "acc": Accuracy,
    "accuracy": Accuracy,
    "ce": CrossEntropy,
    "composite": CompositeEvalMetric,
    "cross-entropy": CrossEntropy,
    "crossentropy": CrossEntropy,
    "f1": F1,
    "loss": Loss,
    "mae": MAE,
    "mse": MSE,
    "negativeloglikelihood": NegativeLogLikelihood,
    "nll_loss": NegativeLogLikelihood,
    "perplexity": Perplexity,
    "rmse": RMSE,
    "top_k_acc": TopKAccuracy,
    "top_k_accuracy": TopKAccuracy,
    "topkaccuracy": TopKAccuracy,
}


def create(metric: Any, *args: Any, **kwargs: Any) -> EvalMetric:
    """A metric by name, of a function, of a list, or itself.

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


def __getattr__(name: str) -> Any:
    raise explain("mxnet.metric", name)
