"""`mxnet.callback`: functions that scripts call after a batch or an epoch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from feedline.mxnet._names import names_of
from feedline.mxnet.model import save_checkpoint

__all__, __getattr__ = names_of(__name__)


class Speedometer:
    """Logs samples per second, and the metrics, after every ``frequent`` batches.

    Args:
        batch_size: samples in a batch.
        frequent: number of batches between two lines.
        auto_reset: whether to reset the metrics after each line.
    """

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True) -> None:
        self.batch_size, self.frequent, self.auto_reset = batch_size, frequent, auto_reset
        self.init, self.tic, self.last_count = False, 0.0, 0

    def __call__(self, param: Any) -> None:
        """Count a batch. ``param`` has ``epoch``, ``nbatch`` and ``eval_metric``."""
        count = param.nbatch
        if self.last_count > count:
            self.init = False
        self.last_count = count
        if not self.init:
            self.init, self.tic = True, time.time()
            return
        if count % self.frequent:
            return
        took = time.time() - self.tic
        speed = self.frequent * self.batch_size / took if took else float("inf")
        if param.eval_metric is None:
            logging.info("Iter[%d] Batch [%d]\tSpeed: %.2f samples/sec", param.epoch, count, speed)
        else:
            pairs = param.eval_metric.get_name_value()
            first = count - self.frequent
            if self.auto_reset:
                param.eval_metric.reset_local()
                head = f"Epoch[{param.epoch}] Batch [{first}-{count}]\tSpeed: {speed:.2f} samples/sec"
            else:
                head = f"Epoch[{param.epoch}] Batch [0-{count}]\tSpeed: {speed:.2f} samples/sec"
            logging.info("%s", head + "".join(f"\t{name}={value:f}" for name, value in pairs))
        self.tic = time.time()


def do_checkpoint(prefix: str, period: int = 1) -> Callable[..., None]:
    """Return a function ``(epoch, symbol, arguments, states)`` that saves after every ``period`` epochs."""
    every = max(1, int(period))

    def save(iter_no: int, sym: Any, arg: Any, aux: Any) -> None:
        if (iter_no + 1) % every == 0:
            save_checkpoint(prefix, iter_no + 1, sym, arg, aux)

    return save


def log_train_metric(period: int, auto_reset: bool = False) -> Callable[[Any], None]:
    """Return a function that logs the metrics after every ``period`` batches."""

    def log(param: Any) -> None:
        if param.nbatch % period == 0 and param.eval_metric is not None:
            for name, value in param.eval_metric.get_name_value():
                logging.info("Iter[%d] Batch[%d] Train-%s=%f", param.epoch, param.nbatch, name, value)
            if auto_reset:
                param.eval_metric.reset_local()

    return log
