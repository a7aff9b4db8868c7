"""`mxnet.metric`: metrics over batches.

``update(labels, predictions)`` accepts lists of NDArrays. ``get()`` returns name and value, NaN before the first
update. All metrics are computed by NumPy in float64.

Each metric is kept twice: since the last `EvalMetric.reset_local`, which `Speedometer` calls for the mean of the last
batches, and since the last `EvalMetric.reset`, as ``get_global()`` returns it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as _numpy

from feedline.mxnet._names import names_of

__all__, __getattr__ = names_of(__name__)


def _array(value: Any) -> Any:
    return value.asnumpy() if hasattr(value, "asnumpy") else _numpy.asarray(value)


def check_label_shapes(labels: Any, preds: Any, wrap: bool = False, shape: bool = False) -> tuple[Any, Any]:
    """Check and return labels and predictions, in lists if ``wrap``.

    Raises:
        ValueError: numbers of labels and predictions differ, or, with ``shape``, their shapes.
    """
    label_size, pred_size = (labels.shape, preds.shape) if shape else (len(labels), len(preds))
    if label_size != pred_size:
        raise ValueError(f"Shape of labels {label_size} does not match shape of predictions {pred_size}")
    if wrap:
        labels = labels if isinstance(labels, (list, tuple)) else [labels]
        preds = preds if isinstance(preds, (list, tuple)) else [preds]
    return labels, preds


class EvalMetric:
    """Base class of metrics: a sum and a count. Subclasses define the contribution of a label and its prediction.

    Args:
        name: name of the metric.
        output_names: see Attributes.
        label_names: see Attributes.
        settings: parameters of a subclass, for `get_config`. With ``has_global_stats``, which is False by default, its
            ``update`` also adds to ``global_sum_metric`` and ``global_num_inst``.

    Attributes:
        name: name of the metric.
        output_names: predictions that `update_dict` uses. None means all.
        label_names: labels that `update_dict` uses. None means all.
        sum_metric: sum since the last `reset_local`.
        num_inst: count since the last `reset_local`.
        global_sum_metric: sum since the last `reset`.
        global_num_inst: count since the last `reset`.
    """

    def __init__(
        self,
        name: str,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        self._has_global = settings.pop("has_global_stats", False)
        self.name, self.output_names, self.label_names = name, output_names, label_names
        self._settings = {"name": name, **settings}
        self.reset()

    def reset(self) -> None:
        """Reset all sums and counts."""
        self.reset_local()
        self.global_sum_metric, self.global_num_inst = 0.0, 0

    def reset_local(self) -> None:
        """Reset sum and count, except the global ones."""
        self.sum_metric, self.num_inst = 0.0, 0

    def get_config(self) -> dict[str, Any]:
        """Return class, parameters and the names that `update_dict` uses, from which ``create(**config)`` copies it."""
        return {
            **self._settings,
            "metric": type(self).__name__,
            "output_names": self.output_names,
            "label_names": self.label_names,
        }

    def update(self, labels: Any, preds: Any) -> None:
        """Add a batch: a list of labels and a list of predictions."""
        labels, preds = check_label_shapes(labels, preds, wrap=True)
        for label, pred in zip(labels, preds, strict=True):
            self._add(*self._measure(_array(label), _array(pred)))

    def _add(self, total: float, count: int) -> None:
        self.sum_metric += float(total)
        self.num_inst += int(count)
        self.global_sum_metric += float(total)
        self.global_num_inst += int(count)

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        """Return the increments of the sum and of the count by a pair."""
        raise NotImplementedError(f"{type(self).__name__}._measure")

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """Add a batch, by name."""
        preds = [pred[name] for name in self.output_names] if self.output_names is not None else list(pred.values())
        labels = [label[name] for name in self.label_names] if self.label_names is not None else list(label.values())
        self.update(labels, preds)

    def get(self) -> tuple[Any, Any]:
        """Return name and value."""
        return self.name, self._value(self.sum_metric, self.num_inst)

    def get_global(self) -> tuple[Any, Any]:
        """Return name and value since the last `reset`, or the result of `get` for a metric without global sums."""
        if not self._has_global:
            return self.get()
        return self.name, self._value(self.global_sum_metric, self.global_num_inst)

    def _value(self, total: float, count: int) -> float:
        return total / count if count else math.nan

    def get_name_value(self) -> list[tuple[str, float]]:
        """Return pairs of names and values."""
        return _pair(*self.get())

    def get_global_name_value(self) -> list[tuple[str, float]]:
        """Return pairs of names and values since the last `reset`."""
        return _pair(*self.get_global())

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"


def _pair(name: Any, value: Any) -> list[tuple[str, float]]:
    return list(zip(name, value, strict=True)) if isinstance(name, list) else [(name, value)]


class CompositeEvalMetric(EvalMetric):
    """Several metrics as one."""

    def __init__(self, metrics: Sequence[Any] | None = None, name: str = "composite", **names: Any) -> None:
        self.metrics = [create(metric) for metric in metrics or ()]
        super().__init__(name, **names)

    def add(self, metric: Any) -> None:
        """Add a metric."""
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

    def reset_local(self) -> None:
        """See `EvalMetric.reset_local`."""
        for metric in self.metrics:
            metric.reset_local()

    def get_config(self) -> dict[str, Any]:
        """See `EvalMetric.get_config`."""
        return {**super().get_config(), "metrics": [metric.get_config() for metric in self.metrics]}

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

    def get_global(self) -> tuple[list[str], list[float]]:
        """Return names and values since the last `reset`."""
        pairs = [pair for metric in self.metrics for pair in metric.get_global_name_value()]
        return [name for name, _ in pairs], [value for _, value in pairs]


class _GlobalMetric(EvalMetric):
    """A metric that keeps global sums, too."""

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name, has_global_stats=True, **settings)


class Accuracy(_GlobalMetric):
    """Fraction of predictions whose largest score is the label's. Predictions of the labels' shape are classes."""

    def __init__(self, axis: int = 1, name: str = "accuracy", **names: Any) -> None:
        super().__init__(name, axis=axis, **names)
        self.axis = axis

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        classes = pred.argmax(self.axis) if pred.shape != label.shape else pred
        label, classes = label.astype("int64").ravel(), classes.astype("int64").ravel()
        check_label_shapes(label, classes, shape=True)
        return (label == classes).sum(), label.size


class TopKAccuracy(_GlobalMetric):
    """Fraction of labels among the ``top_k`` largest scores.

    Raises:
        ValueError: ``top_k`` below 2.
    """

    def __init__(self, top_k: int = 1, name: str = "top_k_accuracy", **names: Any) -> None:
        if top_k < 2:
            raise ValueError(f"Please use Accuracy if top_k is no more than 1, got {top_k}")
        super().__init__(name, top_k=top_k, **names)
        self.name, self.top_k = f"{name}_{top_k}", top_k

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        best = _numpy.argsort(-pred.astype("float32"), axis=1, kind="stable")[:, : self.top_k]
        return (best == label.astype("int64").reshape(-1, 1)).sum(), len(pred)


class _Tallied(_GlobalMetric):
    """A score that is no mean over samples: the average of the scores of updates, or the score of all samples (micro).

    Raises:
        ValueError: an unknown average.
    """

    def __init__(
        self,
        name: str,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        average: str = "macro",
    ) -> None:
        if average not in ("macro", "micro"):
            raise ValueError(f"expected an average macro or micro, got {average!r}")
        self.average = average
        super().__init__(name, output_names=output_names, label_names=label_names, average=average)

    def reset(self) -> None:
        """See `EvalMetric.reset`."""
        super().reset()
        self._all = self._tally()

    def reset_local(self) -> None:
        """See `EvalMetric.reset_local`."""
        super().reset_local()
        self._recent = self._tally()

    def update(self, labels: Any, preds: Any) -> None:
        """See `EvalMetric.update`."""
        labels, preds = check_label_shapes(labels, preds, wrap=True)
        pairs = [(_array(label), _array(pred)) for label, pred in zip(labels, preds, strict=True)]
        if self.average == "macro":
            self._add_each(pairs)
            return
        self._recent, self._all = self._with(self._recent, pairs), self._with(self._all, pairs)
        self.num_inst, self.global_num_inst = self._count(self._recent), self._count(self._all)
        self.sum_metric = self._score(self._recent) * self.num_inst
        self.global_sum_metric = self._score(self._all) * self.global_num_inst

    def _add_each(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self._add(self._score(self._with(self._tally(), pairs)), 1)

    def _tally(self) -> Any:
        """Return an empty tally, an array."""
        raise NotImplementedError(f"{type(self).__name__}._tally")

    def _with(self, tally: Any, pairs: Sequence[tuple[Any, Any]]) -> Any:
        """Return a new tally, with labels and predictions added."""
        raise NotImplementedError(f"{type(self).__name__}._with")

    def _score(self, tally: Any) -> float:
        """Return the value of a tally."""
        raise NotImplementedError(f"{type(self).__name__}._score")

    def _count(self, tally: Any) -> int:
        """Return the number of samples of a tally."""
        return int(tally.sum())


class _Binary(_Tallied):
    """A score of two classes, with a column of the predictions each: counts by prediction and label.

    Raises:
        ValueError: in updates, labels other than 0 and 1.
    """

    def _tally(self) -> Any:
        return _numpy.zeros((2, 2))

    def _with(self, tally: Any, pairs: Sequence[tuple[Any, Any]]) -> Any:
        tally = tally.copy()
        for label, pred in pairs:
            label = label.astype("int64").ravel()
            if not set(_numpy.unique(label)) <= {0, 1}:
                name = type(self).__name__
                raise ValueError(f"{name} currently only supports binary classification, got {_numpy.unique(label)}")
            _numpy.add.at(tally, ((pred.argmax(1) == 1).astype("int64"), label), 1)
        return tally


class F1(_Binary):
    """Harmonic mean of precision and recall of class 1 of two, averaged over updates, or of all (``"micro"``).

    Raises:
        ValueError: an unknown average, or, in updates, labels other than 0 and 1.
    """

    def __init__(
        self,
        name: str = "f1",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        average: str = "macro",
    ) -> None:
        super().__init__(name, output_names, label_names, average)

    def _score(self, tally: Any) -> float:
        missed, wrong, right = tally[0, 1], tally[1, 0], tally[1, 1]
        precision = right / (right + wrong) if right + wrong else 0.0
        recall = right / (right + missed) if right + missed else 0.0
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


class MCC(_Binary):
    """Matthews's correlation coefficient of two classes, averaged over updates, or of all (``"micro"``).

    It is ``(TP TN - FP FN) / sqrt((TP+FP) (TP+FN) (TN+FP) (TN+FN))``, without factors of zero in the denominator, as in
    MXNet.

    Raises:
        ValueError: an unknown average, or, in updates, labels other than 0 and 1.
    """

    def __init__(
        self,
        name: str = "mcc",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        average: str = "macro",
    ) -> None:
        super().__init__(name, output_names, label_names, average)

    def _score(self, tally: Any) -> float:
        totals = [total for total in (*tally.sum(0), *tally.sum(1)) if total]
        return float((tally[0, 0] * tally[1, 1] - tally[0, 1] * tally[1, 0]) / math.sqrt(math.prod(totals)))


class PCC(_Tallied):
    """Correlation coefficient of classes, any number of them: `MCC` for two.

    With counts ``C`` by prediction and label, and their sums by row ``x``, by column ``y`` and of all ``n``, it is
    ``sum(n C_ii - x_i y_i) / sqrt(sum(x (n - x)) sum(y (n - y)))``, or NaN if predictions or labels are of one class.
    Predictions are classes in the labels' shape, or scores with classes along axis 1. ``num_inst`` counts updates.

    Raises:
        ValueError: in updates, negative classes.
    """

    def __init__(
        self,
        name: str = "pcc",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, output_names, label_names, "micro")
        del self._settings["average"]  # no parameter of this class

    def _tally(self) -> Any:
        # Counts by prediction and label, and the number of updates.
        return _numpy.zeros((0, 0)), 0

    def _with(self, tally: Any, pairs: Sequence[tuple[Any, Any]]) -> Any:
        counts, updates = tally
        for label, pred in pairs:
            classes = pred.argmax(1) if pred.shape != label.shape else pred
            label, classes = label.astype("int64").ravel(), classes.astype("int64").ravel()
            check_label_shapes(label, classes, shape=True)
            if min(label.min(initial=0), classes.min(initial=0)) < 0:
                raise ValueError(f"expected classes from 0, got {min(label.min(), classes.min())}")
            growth = max(label.max(initial=-1), classes.max(initial=-1)) + 1 - len(counts)
            counts = _numpy.pad(counts, (0, max(growth, 0)))
            _numpy.add.at(counts, (classes, label), 1)
        return counts, updates + 1

    def _count(self, tally: Any) -> int:
        return int(tally[1])

    def _score(self, tally: Any) -> float:
        counts = tally[0]
        n, x, y = counts.sum(), counts.sum(1), counts.sum(0)
        spread = (x * (n - x)).sum() * (y * (n - y)).sum()
        return float((n * counts.diagonal() - x * y).sum() / math.sqrt(spread)) if spread else math.nan


class PearsonCorrelation(_Tallied):
    """Pearson's correlation coefficient of labels and predictions: of each pair, averaged, or of all (``"micro"``).

    ``num_inst`` counts pairs of arrays.

    Raises:
        ValueError: an unknown average, or, in updates, shapes that differ.
    """

    def __init__(
        self,
        name: str = "pearsonr",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        average: str = "macro",
    ) -> None:
        super().__init__(name, output_names, label_names, average)

    def _add_each(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        for pair in pairs:
            super()._add_each([pair])

    def _tally(self) -> Any:
        # Numbers of pairs and elements, means, and sums of products of deviations, updated as by Chan et al. (1979).
        return 0, 0, _numpy.zeros(2), _numpy.zeros((2, 2))

    def _with(self, tally: Any, pairs: Sequence[tuple[Any, Any]]) -> Any:
        arrays, n, mean, products = tally
        for label, pred in pairs:
            check_label_shapes(label, pred, shape=True)
            both = _numpy.stack([label.ravel(), pred.ravel()]).astype("float64")
            arrays, m = arrays + 1, both.shape[1]
            if m == 0:
                continue
            center = both.mean(1)
            shift, deviations = center - mean, both - center[:, None]
            products = products + deviations @ deviations.T + _numpy.outer(shift, shift) * (n * m / (n + m))
            mean, n = mean + shift * (m / (n + m)), n + m
        return arrays, n, mean, products

    def _count(self, tally: Any) -> int:
        return int(tally[0])

    def _score(self, tally: Any) -> float:
        products = tally[3]
        spread = products[0, 0] * products[1, 1]
        return float(products[0, 1] / math.sqrt(spread)) if spread else math.nan


class _Regression(_GlobalMetric):
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


class CrossEntropy(_GlobalMetric):
    """Mean of ``-log(p + eps)`` of the label's probability."""

    def __init__(self, eps: float = 1e-12, name: str = "cross-entropy", **names: Any) -> None:
        super().__init__(name, eps=eps, **names)
        self.eps = eps

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        label, chances = _chances(label, pred)
        return float(-_numpy.log(chances + self.eps).sum()), len(label)


def _chances(label: Any, rows: Any, ignored: Any = None) -> tuple[Any, Any]:
    """Return the labels that are not ignored, and their probabilities in float64."""
    label = label.ravel().astype("int64")
    if len(label) != len(rows):
        raise ValueError(f"expected a label for each of {len(rows)} rows, got {len(label)}")
    index = _numpy.flatnonzero(label != ignored)
    return label[index], rows[index, label[index]].astype("float64")


class NegativeLogLikelihood(CrossEntropy):
    """`CrossEntropy` under another name."""

    def __init__(self, eps: float = 1e-12, name: str = "nll-loss", **names: Any) -> None:
        super().__init__(eps, name, **names)


class Perplexity(_GlobalMetric):
    """Exponential of the mean of ``-log(p)`` of the label's probability.

    Args:
        ignore_label: label to ignore, or None.
        axis: axis of the classes, only the last one.
        name: name of the metric.
        names: see `EvalMetric`.
    """

    def __init__(self, ignore_label: int | None, axis: int = -1, name: str = "perplexity", **names: Any) -> None:
        super().__init__(name, ignore_label=ignore_label, axis=axis, **names)
        self.ignore_label, self.axis = ignore_label, axis

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        rows = _numpy.moveaxis(pred, self.axis, -1).reshape(-1, pred.shape[self.axis])
        label, chances = _chances(label, rows, self.ignore_label)
        return float(-_numpy.log(_numpy.maximum(chances, 1e-10)).sum()), len(label)

    def _value(self, total: float, count: int) -> float:
        return math.exp(total / count) if count else math.nan


class Loss(_GlobalMetric):
    """Mean of the predictions. Labels are ignored."""

    def __init__(self, name: str = "loss", **names: Any) -> None:
        super().__init__(name, **names)

    def update(self, labels: Any, preds: Any) -> None:
        """See `EvalMetric.update`."""
        for pred in preds if isinstance(preds, (list, tuple)) else [preds]:
            self._add(_array(pred).sum(), _array(pred).size)


class Torch(Loss):
    """`Loss` under another name."""

    def __init__(self, name: str = "torch", **names: Any) -> None:
        super().__init__(name, **names)


class Caffe(Loss):
    """`Loss` under another name."""

    def __init__(self, name: str = "caffe", **names: Any) -> None:
        super().__init__(name, **names)


class CustomMetric(_GlobalMetric):
    """Mean over batches of ``feval(label, prediction)``, which gets NumPy arrays and returns a number or (sum, count).

    Attributes:
        allow_extra_outputs: whether there may be more predictions than labels. Only the first are used.
    """

    def __init__(
        self,
        feval: Callable[[Any, Any], Any],
        name: str | None = None,
        allow_extra_outputs: bool = False,
        **names: Any,
    ) -> None:
        function_name = getattr(feval, "__name__", "custom")
        super().__init__(name or (f"custom({function_name})" if "<" in function_name else function_name), **names)
        self._feval, self.allow_extra_outputs = feval, allow_extra_outputs

    def update(self, labels: Any, preds: Any) -> None:
        """See `EvalMetric.update`."""
        super().update(labels, preds[: len(labels)] if self.allow_extra_outputs else preds)

    def get_config(self) -> dict[str, Any]:
        """Raise NotImplementedError, as a function is no parameter.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("expected a metric with a class of its own, got CustomMetric: keep its function")

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        result = self._feval(label, pred)
        return result if isinstance(result, tuple) else (result, 1)


def np(
    numpy_feval: Callable[[Any, Any], Any], name: str | None = None, allow_extra_outputs: bool = False
) -> CustomMetric:
    """Return a metric by a function of NumPy arrays."""
    return CustomMetric(numpy_feval, name, allow_extra_outputs)


# Each under the name of its class, and some under further names.
_METRICS = (
    Accuracy, Caffe, CrossEntropy, F1, Loss, MAE, MCC, MSE, NegativeLogLikelihood, PCC, PearsonCorrelation,
    Perplexity, RMSE, TopKAccuracy, Torch,
)  # fmt: skip
_CLASSES: dict[str, Callable[..., EvalMetric]] = {
    **{metric.__name__.lower(): metric for metric in _METRICS},
    "acc": Accuracy,
    "ce": CrossEntropy,
    "composite": CompositeEvalMetric,
    "compositeevalmetric": CompositeEvalMetric,
    "cross-entropy": CrossEntropy,
    "nll_loss": NegativeLogLikelihood,
    "pearsonr": PearsonCorrelation,
    "top_k_acc": TopKAccuracy,
    "top_k_accuracy": TopKAccuracy,
}


def register(klass: type[EvalMetric]) -> type[EvalMetric]:
    """Register a class for `create` under its name, in any case. Usable as a decorator."""
    _CLASSES[klass.__name__.lower()] = klass
    return klass


def alias(*aliases: str) -> Callable[[type[EvalMetric]], type[EvalMetric]]:
    """Return a decorator that registers a class for `create` under these names."""

    def named(klass: type[EvalMetric]) -> type[EvalMetric]:
        _CLASSES.update({name.lower(): klass for name in aliases})
        return klass

    return named


def create(metric: Any, *args: Any, **kwargs: Any) -> EvalMetric:
    """Return a metric from a name, a function, a list or an `EvalMetric.get_config`, also as JSON text.

    A metric is returned unchanged.

    Raises:
        ValueError: an unknown name.
    """
    if isinstance(metric, EvalMetric):
        return metric
    if isinstance(metric, Mapping):
        return create(**metric)
    if callable(metric):
        return CustomMetric(metric, *args, **kwargs)
    if isinstance(metric, (list, tuple)):
        return CompositeEvalMetric([create(item, *args, **kwargs) for item in metric])
    if isinstance(metric, str) and metric.startswith("{"):
        return create(**json.loads(metric))
    if str(metric).lower() not in _CLASSES:
        raise ValueError(f"expected a metric of {', '.join(sorted(_CLASSES))}, got {metric!r}")
    return _CLASSES[metric.lower()](*args, **kwargs)
