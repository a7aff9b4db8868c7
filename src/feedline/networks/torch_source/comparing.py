"""Compare a generated module with its network: both run on the same random inputs."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.data.value import Value
from feedline.errors import CompatError
from feedline.networks import Node
from feedline.networks.compile import Network
from feedline.networks.node import FREE
from feedline.networks.packed_minibatch import PackedRows, SparseRows
from feedline.networks.torch_source.source_writer import SourceWriter

# Largest difference of a value, relative to the largest value of the output or 1.
TOLERANCE = {torch.float16: 5e-3, torch.float32: 1e-5, torch.float64: 1e-10}
_STEPS = (5, 8, 7)  # of the sequences of a minibatch
_LENGTH = 6  # of free axes


def check_equal(path: Path, probe: str, w: SourceWriter, roots: Sequence[Node]) -> float:
    """Run a network and its generated module, and return the largest relative difference of an output.

    Args:
        path: path of the module, next to its weights.
        probe: source of the same module that returns all values of `SourceWriter.written`.
        w: writer of the module.
        roots: outputs of the network.

    Raises:
        CompatError: an output differs. The error names the first layer that differs.
    """
    feeds, arguments = _draw(w)
    expected = _expected(roots, feeds)
    largest = 0.0
    for root, rows, result in zip(roots, expected, _results(path, arguments), strict=True):
        difference, allowed = compare(rows, result)
        largest = max(largest, difference)
        if not difference <= allowed:
            path.write_text(probe, encoding="utf-8")
            raise CompatError(_first_difference(path, w, feeds, arguments, root, difference))
    return largest


def _first_difference(path: Path, w: SourceWriter, feeds: Any, arguments: Any, root: Node, difference: float) -> str:
    """Return the message about the first value of the probe that differs."""
    place, layer = f"difference {difference:.3g}", root.label
    for (node, name), result in zip(w.written, _results(path, arguments), strict=True):
        try:
            (rows,) = _expected([node], feeds)
        except ValueError:
            continue  # a part of an operation, which the network cannot compute alone
        difference, allowed = compare(rows, result)
        if not difference <= allowed:
            place, layer = f"`{name}` in forward, difference {difference:.3g}", node.label
            break
    return (
        f"expected the module to compute what the network does, got another result, first in {layer} ({place}), so no "
        "file was written; please report it with the network"
    )


def _results(path: Path, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    names = runpy.run_path(str(path))
    with torch.no_grad():
        results = names["load"]()(*arguments)
    return [results] if isinstance(results, torch.Tensor) else list(results)


def _expected(roots: Sequence[Node], feeds: dict[Node, Value | PackedRows]) -> list[Any]:
    network = Network(roots).eval()
    with torch.no_grad():
        # The module leaves out inputs that do not matter, such as the labels of predictions.
        absent = {node: _zeros(node) for node in network.inputs if node not in feeds}
        return list(network({**absent, **{node: feeds[node] for node in network.inputs if node in feeds}}))


def _zeros(node: Node) -> PackedRows:
    return PackedRows(torch.zeros((1, *node.shape) if node.axes else node.shape))


def compare(rows: Any, result: torch.Tensor) -> tuple[float, float]:
    """Return the largest difference of a result, relative to the largest value or 1, and the largest that is allowed.

    Args:
        rows: the network's result, packed.
        result: the module's result, (batch, time, ...) for sequences. Padding is not compared.
    """
    data = rows.data.dense() if isinstance(rows.data, SparseRows) else rows.data
    if rows.sequences is not None:
        lengths = torch.from_numpy(np.asarray(rows.sequences.lengths))
        if result.ndim < 2 or len(result) != len(lengths) or result.shape[1] < int(lengths.max()):
            return float("inf"), 0.0
        result = result[torch.arange(result.shape[1]) < lengths[:, None]]
    if result.shape != data.shape:
        return float("inf"), 0.0
    if not data.numel():
        return 0.0, 0.0
    data, result = data.double(), result.double()
    same = (data == result) | (data.isnan() & result.isnan())
    difference = torch.where(same, 0.0, (data - result).abs()).max()
    finite = data[data.isfinite()].abs()
    scale = max(1.0, float(finite.max())) if len(finite) else 1.0
    return float(difference) / scale, TOLERANCE.get(rows.data.dtype, TOLERANCE[torch.float32])


def _draw(w: SourceWriter) -> tuple[dict[Node, Value | PackedRows], list[torch.Tensor]]:
    """Return random values for the inputs, and the same numbers as arguments of the module."""
    rng = np.random.default_rng(0)
    lengths: dict[str, NDArray[np.int64]] = {}
    feeds: dict[Node, Value | PackedRows] = {}
    arguments: list[torch.Tensor] = []
    for node in w.parts.arguments:
        steps = np.ones(len(_STEPS), np.int64)
        if len(node.axes) > 1:
            steps = lengths.setdefault(node.axes[1], np.roll(_STEPS, len(lengths)))
        shape = tuple(_LENGTH if n == FREE else n for n in node.shape)
        count = int(steps.sum()) if node.axes else 1
        rows, offsets = _rows(w, node, (count, *shape), rng), np.concatenate([[0], np.cumsum(steps)])
        if not node.axes:
            tensor = torch.from_numpy(rows[0])
            feeds[node] = PackedRows(tensor)
        else:
            feeds[node] = Value.from_dense(rows, offsets) if len(node.axes) > 1 else Value.from_dense(rows)
            tensor = torch.from_numpy(rows)
            if len(node.axes) > 1:
                # Numbers in the padding must not matter.
                padded = torch.full((len(steps), int(steps.max()), *shape), 3.0, dtype=tensor.dtype)
                padded[torch.arange(padded.shape[1]) < torch.from_numpy(steps)[:, None]] = tensor
                tensor = padded
        arguments.append(tensor)
    arguments += [torch.from_numpy(steps) for steps in lengths.values()]
    return feeds, arguments


def _rows(w: SourceWriter, node: Node, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    """Return normal numbers. Indices have whole numbers in their range, sparse data is one-hot."""
    if node.sparse:
        return np.eye(shape[-1], dtype=node.dtype)[rng.integers(0, shape[-1], shape[:-1])]
    if node in w.parts.limits:
        return rng.integers(0, w.parts.limits[node], shape).astype(node.dtype)
    return rng.normal(size=shape).astype(node.dtype)
