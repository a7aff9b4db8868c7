"""Strategies by which ranks train together, one file each. Their interface is `feedline.train.strategy`."""

from feedline.train.distributed.average_blocks import block_momentum
from feedline.train.distributed.quantize_gradients import quantized
from feedline.train.distributed.store_gradients import through_store
from feedline.train.distributed.sum_gradients import data_parallel

__all__ = ["block_momentum", "data_parallel", "quantized", "through_store"]
