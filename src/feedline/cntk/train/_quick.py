"""`Function.train` and `Function.test`: a trainer, a session and their results in one call."""

from __future__ import annotations

import sys
from typing import Any

from feedline.cntk.io._source import MinibatchSource
from feedline.cntk.io._user import UserMinibatchSource
from feedline.cntk.learners._schedules import sizes_of
from feedline.cntk.logging._writer import Counts, ProgressWriter, Sums, Totals
from feedline.cntk.train._configs import CheckpointConfig, CrossValidationConfig, TestConfig
from feedline.cntk.train._evaluator import Evaluator
from feedline.cntk.train.trainer import Trainer
from feedline.cntk.train.training_session import from_arrays, training_session
from feedline.cntk.variables import Record

_NEVER = sys.maxsize
_CONFIGS = {
    CheckpointConfig: "checkpoint_config",
    CrossValidationConfig: "cv_config",
    TestConfig: "test_config",
}


class _Collector(ProgressWriter):
    """Progress writer that collects averages and their numbers of label samples."""

    def __init__(self, every: int = _NEVER) -> None:
        super().__init__(every, 0, _NEVER, 0, _NEVER, 0)
        self.updates: list[Record] = []
        self.epochs: list[Record] = []
        self.tests: list[Record] = []

    def on_write_training_update(
        self, samples: Counts, updates: Counts, aggregate_loss: Sums, aggregate_metric: Sums
    ) -> None:
        count = samples[1] - samples[0]
        loss, metric = (pair[1] - pair[0] for pair in (aggregate_loss, aggregate_metric))
        self.updates.append(_record(count, loss=loss, metric=metric))

    def _training_summary(self, totals: Totals) -> None:
        self.epochs.append(_record(totals.samples, loss=totals.loss, metric=totals.metric))

    def _test_summary(self, totals: Totals) -> None:
        self.tests.append(_record(totals.samples, metric=totals.metric))


def _record(samples: int, **sums: float) -> Record:
    return Record(**{name: total / samples if samples else 0.0 for name, total in sums.items()}, samples=samples)


def train(
    criterion: Any,
    source: Any,
    size: Any,
    streams: Any,
    learners: Any,
    callbacks: Any,
    progress_frequency: int | None,
    max_epochs: float | None,
    epoch_size: int | None,
    max_samples: int | None,
) -> Record:
    """See `Function.train`."""
    if max_samples is not None and max_epochs is not None:
        raise ValueError("expected max_epochs or max_samples, got both")
    if max_samples is None:
        if epoch_size is None:
            if isinstance(source, (MinibatchSource, UserMinibatchSource)):
                raise ValueError("expected epoch_size or max_samples with a source, which may have no end, got neither")
            epoch_size = _length(source[0])
        max_samples = int((1 if max_epochs is None else max_epochs) * epoch_size)
    writers: list[ProgressWriter] = []
    configs: dict[str, Any] = {}
    for callback in callbacks:
        name = next((name for kind, name in _CONFIGS.items() if isinstance(callback, kind)), None)
        if isinstance(callback, ProgressWriter):
            writers.append(callback)
        elif name is None or name in configs:
            raise ValueError(
                "expected callbacks to be progress writers, and at most one CheckpointConfig, CrossValidationConfig "
                f"and TestConfig each, got {type(callback).__name__}{'' if name is None else ' twice'}"
            )
        else:
            configs[name] = callback
    if isinstance(source, (tuple, list)):
        source, streams = from_arrays(criterion, source)
    sizes = sizes_of(size, "minibatch_size")
    frequency = epoch_size if progress_frequency is None else progress_frequency
    collector = _Collector(max(1, frequency // int(sizes[0])) if frequency else _NEVER)
    trainer = Trainer(None, criterion, learners, [*writers, collector])
    training_session(
        trainer, source, sizes, streams, progress_frequency=frequency, max_samples=max_samples, **configs
    ).train()
    record = Record(updates=collector.updates, epoch_summaries=collector.epochs)
    return record.updated_with(test_summary=collector.tests[-1]) if "test_config" in configs else record


def test(criterion: Any, source: Any, size: Any, streams: Any, callbacks: Any) -> Record:
    """See `Function.test`."""
    if isinstance(source, (tuple, list)):
        source, streams = from_arrays(criterion, source, endless=False)
    if source.is_infinite():
        raise ValueError("expected a source of a limited number of samples or sweeps, got one without an end")
    collector = _Collector()
    evaluator = Evaluator(criterion.outputs[-1], [*callbacks, collector])
    samples, sizes = 0, sizes_of(size, "minibatch_size")
    while minibatch := source.next_minibatch(int(sizes[samples]), *_alone(source)):
        evaluator.test_minibatch({key: minibatch[info] for key, info in streams.items()})
        samples += max(data.num_samples for data in minibatch.values())
    evaluator.summarize_test_progress()
    return collector.tests[-1]


test.__test__ = False  # type: ignore[attr-defined]  # no test case


def _alone(source: Any) -> tuple[Any, ...]:
    """Return the additional arguments that user sources take: a single worker."""
    return (1, 0) if isinstance(source, UserMinibatchSource) else ()


def _length(data: Any) -> int:
    return int(data.shape[0]) if hasattr(data, "tocsr") else len(data)
