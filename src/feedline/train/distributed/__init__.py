"""Strategies by which ranks train together, one file each. Their interface is `feedline.train.strategy`."""

from feedline.train.distributed.block_momentum import block_momentum
from feedline.train.distributed.data_parallel import data_parallel
from feedline.train.distributed.quantized import quantized
from feedline.train.distributed.through_store import through_store

__all__ = ["block_momentum", "data_parallel", "quantized", "through_store"]
