"""Networks in MXNet's files, and their graphs for batches of any size.

The batch is the first axis of every input. Operators see shapes for two lengths of it: lengths that are equal in both
do not depend on the batch. Loss heads are their predictions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import CompatError
from feedline.mxnet.base import MXNetError
from feedline.mxnet.ndarray._files import load
from feedline.mxnet.symbol import load as load_symbol
from feedline.mxnet.symbol._infer import infer_shapes, infer_types
from feedline.mxnet.symbol._lower import lower
from feedline.mxnet.symbol._node import Node as SymbolNode
from feedline.mxnet.symbol._symbol import Symbol
from feedline.networks import Node
from feedline.networks.traverse import topological

HEADS = ("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput", "SVMOutput", "SoftmaxOutput")
OF_DATA = "prediction."  # prefix of heads without their labels


def load_network(symbol: Path, params: Path) -> tuple[Symbol, dict[str, Any]]:
    """Return the symbol and the parameters, by name, in files of MXNet.

    Raises:
        MXNetError: a file is damaged, an operator is not supported, two variables have one name, or a parameter is none
            of the symbol's.
    """
    network = load_symbol(str(symbol))
    arrays = load(str(params))
    if not isinstance(arrays, dict):
        if arrays:
            raise MXNetError(f"expected named arrays in {params}, got {len(arrays)} without names")
        arrays = {}  # a network without parameters
    named = {name.removeprefix("arg:").removeprefix("aux:"): array for name, array in arrays.items()}
    names = [*network.list_arguments(), *network.list_auxiliary_states()]
    known = set(names)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise MXNetError(f"expected one variable of each name in {symbol}, got several `{min(twice)}`")
    if unknown := sorted(named.keys() - known):
        raise MXNetError(
            f"expected parameters of {symbol} in {params}, got {', '.join(unknown[:5])}, which it does not have"
        )
    return network, named


def element_types(
    symbol: Symbol, leaves: Sequence[SymbolNode], arrays: Mapping[SymbolNode, Any]
) -> dict[SymbolNode, str]:
    """Return the element types of variables: those of their parameters, and of inputs the type that parameters imply.

    Raises:
        MXNetError: contradictory types. The error names the operator.
    """
    passed = {node: np.dtype(array.dtype).name for node, array in arrays.items()}
    types = infer_types(symbol.entries, passed, "float32").types
    return {node: types.get((node, 0), "float32") for node in leaves}


def lowered(
    symbol: Symbol,
    leaves: Sequence[SymbolNode],
    arrays: Mapping[SymbolNode, Any],
    types: Mapping[SymbolNode, str],
    shapes: Mapping[str, Sequence[int]],
) -> tuple[list[Node], dict[SymbolNode, Node]]:
    """Return the graph of a symbol for the shapes of its inputs, and the leaf of each variable.

    Raises:
        MXNetError: the parameters or shapes do not fit the symbol, or some are missing.
    """
    inputs = {node.name: node for node in leaves if node not in arrays}
    if unknown := sorted(shapes.keys() - inputs.keys()):
        raise MXNetError(f"expected shapes of inputs, {', '.join(inputs) or 'none'}, got one of `{unknown[0]}`")
    passed = {node: tuple(array.shape) for node, array in arrays.items()}
    passed |= {inputs[name]: tuple(shape) for name, shape in shapes.items()}
    inferred = infer_shapes(symbol.entries, passed)
    if lacking := [node.name for node in leaves if not inferred.knows(node)]:
        raise MXNetError(f"expected parameters or shapes for all variables, got neither for {', '.join(lacking)}")
    for node, shape in passed.items():
        if inferred.shape(node) != shape:
            raise MXNetError(f"expected shape {inferred.shape(node)} for `{node.name}`, got {shape}")
    return lower(symbol.entries, inferred, types)


def shapes_of_larger(
    symbol: Symbol,
    leaves: Sequence[SymbolNode],
    arrays: Mapping[SymbolNode, Any],
    types: Mapping[SymbolNode, str],
    shapes: Mapping[str, Sequence[int]],
    roots: Sequence[Node],
) -> dict[Node, tuple[int, ...]]:
    """Return the shape of each node below the roots for a batch that is larger by one.

    Raises:
        CompatError: a network for batches of one size.
    """
    larger = {name: (shape[0] + 1, *shape[1:]) for name, shape in shapes.items()}
    try:
        twins = lowered(symbol, leaves, arrays, types, larger)[0]
    except MXNetError as error:
        raise CompatError(f"expected a network for batches of any size, got one for {dict(shapes)} only") from error
    return {node: shape_in_batch(twin) for node, twin in zip(topological(roots), topological(twins), strict=True)}


def shape_in_batch(node: Node) -> tuple[int, ...]:
    """Return the shape of a node's value, the batch included."""
    shape: tuple[int, ...] | None = node.attributes.get("shape")
    return node.shape if shape is None else shape


def without_label(node: Node) -> Node | None:
    """Return a loss head as an operation of its data alone, or None for other operations."""
    name = node.op.removeprefix("mxnet.")
    if name not in HEADS:
        return None
    return Node(OF_DATA + name, node.inputs[:1], node.attributes, node.given, node.name)
