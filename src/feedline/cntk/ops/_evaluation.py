"""`Evaluable`: values and gradients of outputs, computed by networks that are compiled once and cached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from feedline.cntk._feeding import arrays_of, begun, feeds_of, pieces_of, rows_of, value_of
from feedline.cntk._nodes import node_of
from feedline.cntk._operand import Operand
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.ops._outputs import Outputs
from feedline.cntk.variables import Variable, variable_of
from feedline.data import Value as PackedRows
from feedline.networks import Node


class Evaluable(Outputs):
    """Outputs that can be computed and differentiated; each set of them is compiled once."""

    def network(self, outputs: Iterable[Any] | None = None) -> Any:
        """Return the `torch.nn.Module` that computes ``outputs``, or all; compiled once."""
        from feedline.networks.compile import Network

        roots = tuple(self._roots if outputs is None else [node_of(o) for o in outputs])
        if roots not in self._networks:
            self._networks[roots] = Network(roots)
        return self._networks[roots]

    def _run(
        self,
        arguments: Any,
        outputs: Any,
        device: Any,
        training: bool,
        wanted: Sequence[Node] = (),
        own: bool = False,
    ) -> Any:
        """Return (network, feeds, results). Rows of ``wanted`` inputs are leaves of autograd.

        With ``own`` data is copied, and sparse inputs may be among those wanted, which get no gradients.
        """
        from feedline.networks.packed import PackedRows as Rows
        from feedline.networks.packed import SparseRows

        chosen = None if outputs is None else [outputs] if isinstance(outputs, Operand) else list(outputs)
        network = self.network(chosen)
        if device is not None:
            network.to(device.torch())
        network.train(training)
        order = [v.node for v in self.arguments]
        feeds = feeds_of(arguments, network.inputs, order)
        if own:
            feeds = {node: _owned(given) for node, given in feeds.items()}
        for node in wanted:
            given = feeds.get(node)
            if isinstance(given, PackedRows):
                given = Rows.of(given, network.device, network.dtype, len(node.axes) > 1, not node.sparse)
            if given is not None and isinstance(given.data, SparseRows) and not node.sparse:
                given.data = given.data.dense()
            if given is None or (own and isinstance(given.data, SparseRows)):
                continue
            if isinstance(given.data, SparseRows):
                raise ValueError(f"expected dense data for {node.label}, to take gradients of, got sparse samples")
            given.data.requires_grad_(True)
            feeds[node] = given
        data, begins = begun(arguments)
        given = data.values() if isinstance(data, Mapping) else _listed(data)
        fed = {node: feeds[node] for node in network.inputs if node in feeds}
        return network, feeds, network(fed, *pieces_of(given, begins))

    def eval(
        self, arguments: Any = None, outputs: Any = None, device: DeviceDescriptor | None = None, as_numpy: bool = True
    ) -> Any:
        """Compute outputs in testing mode.

        Args:
            arguments: data by variable or name, in order, or of the only argument; or a pair of that and a list of one
                bool per sequence: whether it begins here, or continues the sequence at the same index in the previous
                call.
            outputs: variables to compute; None: all outputs.
            device: device to run on; None: that of the parameters.
            as_numpy: return arrays; otherwise `Value` objects.

        Returns:
            For one output an array (N, *shape), or a list of one array (length, *shape) per sequence; otherwise
            a dictionary of these by variable.
        """
        import torch

        with torch.no_grad():
            network, _, results = self._run(arguments, outputs, device, False)
        found = handed(network, results, as_numpy)
        return next(iter(found.values())) if len(found) == 1 else found

    def evaluate(
        self, arguments: Any, outputs: dict[Any, Any] | None = None, device: DeviceDescriptor | None = None
    ) -> dict[Any, Any]:
        """Compute outputs in testing mode, as `Value` objects.

        Args:
            arguments: data, as in `eval`.
            outputs: dictionary whose keys are the variables to compute, to be filled; None: all outputs.
            device: device to run on; None: that of the parameters.

        Returns:
            The values by variable, which is ``outputs`` if it is given.
        """
        import torch

        with torch.no_grad():
            network, _, results = self._run(arguments, None if outputs is None else list(outputs), device, False)
        found = handed(network, results, as_numpy=False)
        if outputs is None:
            return found
        for variable, value in zip(list(outputs), found.values(), strict=True):
            outputs[variable] = value
        return outputs

    def forward(
        self,
        arguments: Any,
        outputs: Any = None,
        keep_for_backward: Any = None,
        device: DeviceDescriptor | None = None,
        as_numpy: bool = True,
    ) -> tuple[Any, dict[Variable, Any]]:
        """Compute outputs in training mode.

        Returns:
            A state for `backward`, None without ``keep_for_backward``; and the outputs by variable.
        """
        import torch

        keep = bool(keep_for_backward)
        with torch.enable_grad() if keep else torch.no_grad():
            inputs = [v.node for v in self.arguments if v.is_input] if keep else []
            # The state kept for backward must not change with the script's arrays.
            network, feeds, results = self._run(arguments, outputs, device, True, inputs, keep)
        state = (network, feeds, results) if keep else None
        return state, handed(network, results, as_numpy)

    def backward(
        self, state: Any, root_gradients: Mapping[Any, Any] | Any, variables: Iterable[Any], as_numpy: bool = True
    ) -> dict[Any, Any]:
        """Return gradients of the outputs of `forward`, weighted by ``root_gradients``, with respect to ``variables``.

        Raises:
            ValueError: no state from `forward`.
        """
        if state is None:
            raise ValueError("expected the state of forward(..., keep_for_backward=...), got None")
        network, feeds, results = state
        if not isinstance(root_gradients, Mapping):
            root_gradients = {variable_of(network.roots[0]): root_gradients}
        by_node = {node_of(key): value for key, value in root_gradients.items()}
        pairs = [(r.data, by_node[n], n) for n, r in zip(network.roots, results, strict=True) if n in by_node]
        wanted = list(variables)
        tensors = [_leaf(v.node, feeds) for v in wanted]
        roots, weights = [data for data, _, _ in pairs], [rows_of(g, data, n.shape) for data, g, n in pairs]
        gradients = _differentiated(roots, tensors, weights, keep=True)
        return _gradients(wanted, tensors, gradients, feeds, as_numpy)

    def grad(
        self,
        at: Any,
        wrt: Any = None,
        outputs: Any = None,
        device: DeviceDescriptor | None = None,
        as_numpy: bool = True,
        grad_root: Any = None,
    ) -> Any:
        """Return gradients of the sum of the output, or of ``grad_root``, over all samples.

        Args:
            at: data, as in `eval`.
            wrt: variables; None: all arguments that need gradients, or all inputs if there are none.
            outputs: variables to compute as well.
            device: device to run on.
            as_numpy: return arrays; otherwise `Value` objects.
            grad_root: variable to differentiate; None: the only output.

        Returns:
            For one variable its gradient, otherwise a dictionary by variable; with ``outputs``, a pair of that and the
            values of the outputs.
        """
        import torch

        if wrt is None:
            inputs = [v for v in self.arguments if v.is_input]
            wrt = [v for v in inputs if v.needs_gradient] or inputs
        wanted = [wrt] if isinstance(wrt, Variable) else list(wrt)
        root = self.node if grad_root is None else node_of(grad_root)
        more = [] if outputs is None else [outputs] if isinstance(outputs, Operand) else list(outputs)
        fed = [v.node for v in wanted if not v.is_parameter and not v.is_constant]
        with torch.enable_grad():
            every: list[Any] = [variable_of(root), *more]
            network, feeds, results = self._run(at, every, device, True, fed)
            tensors = [_leaf(v.node, feeds) for v in wanted]
            gradients = _differentiated([results[0].data.sum()], tensors, None)
        found = _gradients(wanted, tensors, gradients, feeds, as_numpy)
        result = next(iter(found.values())) if len(found) == 1 else found
        if outputs is None:
            return result
        values = handed(network, results[1:], as_numpy)
        return result, next(iter(values.values())) if len(values) == 1 else values


def _listed(arguments: Any) -> Sequence[Any]:
    return arguments if isinstance(arguments, (list, tuple)) else (arguments,)


def handed(network: Any, results: Sequence[Any], as_numpy: bool = True) -> dict[Variable, Any]:
    """Return by variable the results, which are those of the network's last outputs."""
    found = {}
    for node, packed in zip(network.roots[len(network.roots) - len(results) :], results, strict=True):
        array = arrays_of(packed)
        found[variable_of(node)] = array if as_numpy else value_of(array)
    return found


def _owned(given: Any) -> Any:
    """Return data that shares no memory with the script's arrays."""
    return given.select(np.arange(given.num_sequences)) if isinstance(given, PackedRows) else given


def _differentiated(roots: Sequence[Any], tensors: Sequence[Any], weights: Any, keep: bool = False) -> Sequence[Any]:
    """Return gradients; None where no root depends on the tensor, or not differentiably."""
    import torch

    moving = [i for i, root in enumerate(roots) if root.requires_grad]
    if not moving or not any(tensor.requires_grad for tensor in tensors):
        return [None] * len(tensors)
    given = None if weights is None else [weights[i] for i in moving]
    wanted = [i for i, tensor in enumerate(tensors) if tensor.requires_grad]
    found = torch.autograd.grad(
        [roots[i] for i in moving], [tensors[i] for i in wanted], given, retain_graph=keep, allow_unused=True
    )
    by_place = dict(zip(wanted, found, strict=True))
    return [by_place.get(i) for i in range(len(tensors))]


def _leaf(node: Node, feeds: Mapping[Node, Any]) -> Any:
    if node.op == "parameter":
        return node.weights.tensor  # type: ignore[union-attr]
    given = feeds.get(node)
    if given is None or not hasattr(given, "data"):
        raise ValueError(f"expected a parameter or an argument to take gradients of, got {node.label}")
    return given.data


def _gradients(
    wanted: Sequence[Any], tensors: Sequence[Any], gradients: Sequence[Any], feeds: Mapping[Node, Any], as_numpy: bool
) -> dict[Any, Any]:
    import torch

    from feedline.networks.packed import PackedRows as Rows

    found = {}
    for variable, tensor, gradient in zip(wanted, tensors, gradients, strict=True):
        rows = torch.zeros_like(tensor) if gradient is None else gradient
        given = feeds.get(variable.node)
        array = arrays_of(Rows(rows, getattr(given, "sequences", None)))
        found[variable] = array if as_numpy else value_of(array)
    return found
