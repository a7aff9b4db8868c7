"""`Evaluator`: the average of a function over minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from feedline.cntk._arguments import arguments_of
from feedline.cntk._criterion import module_of
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.logging._writer import ProgressWriter


class Evaluator:
    """Runs a function of one output over minibatches, as in testing.

    Args:
        eval_function: gives one number for each label sample.
        progress_writers: one, a list, or None.
    """

    def __init__(
        self, eval_function: Any, progress_writers: ProgressWriter | Sequence[ProgressWriter] | None = None
    ) -> None:
        self._function = eval_function
        self._network, _, _ = module_of(eval_function, None)
        self._network.eval()
        given = progress_writers or []
        self._writers = [given] if isinstance(given, ProgressWriter) else list(given)
        self._sum, self._samples = 0.0, 0

    @property
    def evaluation_function(self) -> Any:
        """As given."""
        return self._function

    def test_minibatch(self, arguments: Any, device: DeviceDescriptor | None = None) -> float:
        """The average over a minibatch; arguments as for `Trainer.test_minibatch`, the model stays where it is."""
        with torch.no_grad():
            (numbers,) = self._network(arguments_of(arguments, self._function))
        total, count = float(numbers.sum(dtype=torch.float64)), numbers.numel()
        self._sum, self._samples = self._sum + total, self._samples + count
        for writer in self._writers:
            writer.update_test(count, self._sum)
        return total / count if count else float("nan")

    def summarize_test_progress(self) -> None:
        """Tell the writers what was tested since the last time."""
        for writer in self._writers:
            writer.write_test_summary(self._sum)
        self._sum, self._samples = 0.0, 0
