"""`Evaluator`: averages of a function over minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch

from feedline.cntk._arguments import arguments_of
from feedline.cntk._criterion import module_of
from feedline.cntk._names import absent_members
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.logging._writer import ProgressWriter
from feedline.errors import CompatError


@absent_members("cntk.eval.evaluator")
class Evaluator:
    """Runs a function of one output over minibatches, as in testing.

    Args:
        eval_function: function with one number per label sample.
        progress_writers: progress writer, list of them, or None.
    """

    def __init__(
        self, eval_function: Any, progress_writers: ProgressWriter | Sequence[ProgressWriter] | None = None
    ) -> None:
        self._function = eval_function
        self._network, _, _ = module_of(eval_function, None)
        self._network.eval()
        writers = progress_writers or []
        self._writers = [writers] if isinstance(writers, ProgressWriter) else list(writers)
        self._sum = 0.0

    evaluation_function = property(attrgetter("_function"), doc="The function.")

    def test_minibatch(
        self, arguments: Any, device: DeviceDescriptor | None = None, distributed: bool = False
    ) -> float:
        """Return the average over a minibatch. See `Trainer.test_minibatch`. The model is not moved to ``device``.

        Raises:
            CompatError: ``distributed`` with several workers.
        """
        if distributed and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise CompatError("expected distributed=False with several workers: add the averages up in the script")
        with torch.no_grad():
            (numbers,) = self._network(arguments_of(arguments, self._network.inputs))
        total, count = float(numbers.sum(dtype=torch.float64)), numbers.numel()
        self._sum += total
        for writer in self._writers:
            writer.update_test(count, self._sum)
        return total / count if count else float("nan")

    def summarize_test_progress(self) -> None:
        """Report to the writers the tests since the last call."""
        for writer in self._writers:
            writer.write_test_summary(self._sum)
        self._sum = 0.0
