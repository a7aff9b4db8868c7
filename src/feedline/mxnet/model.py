"""`mxnet.model`: checkpoints of symbols and their parameters, in MXNet's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from feedline.mxnet import symbol
from feedline.mxnet._names import names_of
from feedline.mxnet.ndarray._files import load, save

__all__, __getattr__ = names_of(__name__)


class BatchEndParam(NamedTuple):
    """What callbacks after a batch get: epoch, number of the batch, metric, and local variables of the loop."""

    epoch: int
    nbatch: int
    eval_metric: Any
    locals: Any


def save_checkpoint(
    prefix: str,
    epoch: int,
    symbol: Any,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
    remove_amp_cast: bool = True,
) -> None:
    """Write ``<prefix>-symbol.json`` and ``<prefix>-<epoch>.params``, the epoch with four digits.

    Args:
        prefix: beginning of the paths.
        epoch: number of the epoch.
        symbol: network. None means that its file is not written.
        arg_params: parameters by name.
        aux_params: states by name, such as running means.
        remove_amp_cast: accepted without effect, as there are no such operators here.
    """
    if symbol is not None:
        symbol.save(f"{prefix}-symbol.json")
    arrays = {f"arg:{name}": array for name, array in arg_params.items()}
    arrays |= {f"aux:{name}": array for name, array in aux_params.items()}
    save(f"{prefix}-{epoch:04d}.params", arrays)


def load_params(prefix: str, epoch: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return parameters and states of ``<prefix>-<epoch>.params``, by name.

    Raises:
        MXNetError: the file is not one of arrays, or is cut off.
    """
    arrays = load(f"{prefix}-{epoch:04d}.params")
    named = arrays if isinstance(arrays, dict) else {}
    return tuple(  # type: ignore[return-value]
        {name.removeprefix(kind): array for name, array in named.items() if name.startswith(kind)}
        for kind in ("arg:", "aux:")
    )


def load_checkpoint(prefix: str, epoch: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the symbol, the parameters and the states that `save_checkpoint` wrote, or MXNet.

    Raises:
        MXNetError: a damaged file, or an unsupported operator.
    """
    return symbol.load(f"{prefix}-symbol.json"), *load_params(prefix, epoch)
