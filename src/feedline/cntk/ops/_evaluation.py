"""`Evaluable`: values and gradients of outputs, computed by networks that are compiled once and cached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from feedline.cntk._arguments import arguments_of
from feedline.cntk._feeding import arrays_of, rows_of, value_of
from feedline.cntk._nodes import check_element_types, node_of
from feedline.cntk._operand import Operand
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.ops._outputs import Outputs
from feedline.cntk.variables import Variable, variable_of
from feedline.data import Value as PackedRows
from feedline.networks import Node
from feedline.networks.loop_outputs import outside
from feedline.networks.traverse import topological


class Evaluable(Outputs):
    """Outputs that can be computed and differentiated. Each set of outputs is compiled once."""

    def network(self, outputs: Iterable[Any] | None = None) -> Any:
        """Return the `torch.nn.Module` that computes ``outputs``, by default all. It is compiled once.

        Raises:
            ValueError: an output that is not in the graph of the function, or an operation with operands of several
                element types.
        """
        from feedline.networks.compile import Network

        roots = tuple(self._roots if outputs is None else [node_of(o) for o in outputs])
        if roots not in self._networks:
            check_below(self._roots, roots)
            check_element_types(roots)
            self._networks[roots] = Network(roots)
        return self._networks[roots]

    def _run(
        self,
        arguments: Any,
        outputs: Any,
        device: Any,
        training: bool,
        differentiated: Sequence[Node] = (),
        copy: bool = False,
    ) -> Any:
        """Return (network, feeds, results). Rows of ``differentiated`` inputs are leaves of autograd.

        With ``copy`` data is copied, and differentiated inputs may be sparse, which get no gradients. With autograd
        assignments wait, as gradients need the previous values.
        """
        import torch

        from feedline.networks.compile import pack_rows
        from feedline.networks.packed_minibatch import SparseRows

        variables = None if outputs is None else [outputs] if isinstance(outputs, Operand) else list(outputs)
        network = self.network(variables)
        if device is not None:
            network.to(device.torch())
        network.train(training)
        minibatch = arguments_of(arguments, [v.node for v in self.arguments])
        feeds = {node: minibatch[node] for node in network.inputs if node in minibatch}
        if copy:
            feeds = {node: _copy(rows) for node, rows in feeds.items()}
        for node in differentiated:
            rows = feeds.get(node)
            if isinstance(rows, PackedRows):
                rows = pack_rows(node, rows, network.device, network.dtype)
            if rows is not None and isinstance(rows.data, SparseRows) and not node.sparse:
                rows.data = rows.data.dense()
            if rows is None or (copy and isinstance(rows.data, SparseRows)):
                continue
            if isinstance(rows.data, SparseRows):
                raise ValueError(f"expected dense data for {node.label}, to take gradients of, got sparse samples")
            rows.data.requires_grad_(True)
            feeds[node] = rows
        results = network(feeds, minibatch.lanes, minibatch.begins, assigns=not torch.is_grad_enabled())
        return network, feeds, results

    def eval(
        self, arguments: Any = None, outputs: Any = None, device: DeviceDescriptor | None = None, as_numpy: bool = True
    ) -> Any:
        """Compute outputs in testing mode.

        Args:
            arguments: data by variable or name, or of the only argument. Data is `MinibatchData` or what `Value.create`
                takes, and is ignored for variables that are not arguments. The data of a variable, or all of
                ``arguments``, may be a pair of this and a list of one bool per sequence: whether the sequence begins
                here, or continues the sequence at the same index in the previous call.
            outputs: variables to compute. None means all outputs.
            device: device to run on. None means the device of the parameters.
            as_numpy: whether to return arrays, or `Value` objects.

        Returns:
            For one output an array (N, *shape), or a list of one array (length, *shape) per sequence. For several a
            dictionary of these by variable.
        """
        import torch

        with torch.no_grad():
            network, _, results = self._run(arguments, outputs, device, False)
        values = values_of(network, results, as_numpy)
        return next(iter(values.values())) if len(values) == 1 else values

    def evaluate(
        self, arguments: Any, outputs: dict[Any, Any] | None = None, device: DeviceDescriptor | None = None
    ) -> dict[Any, Any]:
        """Compute outputs in testing mode, as `Value` objects.

        Args:
            arguments: data, as in `eval`.
            outputs: dictionary to fill, whose keys are the variables to compute. None means all outputs.
            device: device to run on. None means the device of the parameters.

        Returns:
            The values by variable, which is ``outputs`` if it is given.
        """
        import torch

        with torch.no_grad():
            network, _, results = self._run(arguments, None if outputs is None else list(outputs), device, False)
        values = values_of(network, results, as_numpy=False)
        if outputs is None:
            return values
        for variable, value in zip(list(outputs), values.values(), strict=True):
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
        """Compute outputs, with ``keep_for_backward`` in training mode, and otherwise in testing mode, as in CNTK.

        In training mode assignments wait for `backward`.

        Returns:
            A state for `backward`, which is None without ``keep_for_backward``, and the outputs by variable.
        """
        import torch

        keep = bool(keep_for_backward)
        with torch.enable_grad() if keep else torch.no_grad():
            inputs = [v.node for v in self.arguments if v.is_input] if keep else []
            # The state for `backward` must not change with the script's arrays.
            network, feeds, results = self._run(arguments, outputs, device, keep, inputs, keep)
        state = (network, feeds, results, network.batch) if keep else None
        return state, values_of(network, results, as_numpy)

    def backward(
        self, state: Any, root_gradients: Mapping[Any, Any] | Any, variables: Iterable[Any], as_numpy: bool = True
    ) -> dict[Any, Any]:
        """Return gradients of the outputs of `forward`, weighted by ``root_gradients``, with respect to ``variables``.

        Raises:
            ValueError: no state from `forward`.
        """
        if state is None:
            raise ValueError("expected the state of forward(..., keep_for_backward=...), got None")
        network, feeds, results, batch = state
        if not isinstance(root_gradients, Mapping):
            root_gradients = {variable_of(network.roots[0]): root_gradients}
        from feedline.networks.compile import assign

        by_node = {node_of(key): value for key, value in root_gradients.items()}
        pairs = [(r.data, by_node[n]) for n, r in zip(network.roots, results, strict=True) if n in by_node]
        targets = list(variables)
        tensors = [_leaf(v.node, feeds) for v in targets]
        roots, weights = [data for data, _ in pairs], [rows_of(g, data) for data, g in pairs]
        gradients = _differentiate(roots, tensors, weights, keep=True)
        assign(batch)
        return _gradients(targets, tensors, gradients, feeds, as_numpy)

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
            wrt: variables. None means all arguments that need gradients.
            outputs: variables to compute as well.
            device: device to run on.
            as_numpy: whether to return arrays, or `Value` objects.
            grad_root: variable to differentiate. None means the only output.

        Returns:
            For one variable its gradient, otherwise a dictionary by variable. With ``outputs``, a pair of the gradients
            and the values of the outputs.

        Raises:
            ValueError: no ``wrt``, and no argument needs gradients.
        """
        import torch

        from feedline.networks.compile import assign

        if wrt is None:
            wrt = [v for v in self.arguments if v.needs_gradient]
            if not wrt:
                names = ", ".join(v.node.label for v in self.arguments) or "no arguments"
                raise ValueError(
                    f"expected an argument with needs_gradient=True, or variables in wrt, got none of {names}"
                )
        targets = [wrt] if isinstance(wrt, Variable) else list(wrt)
        root = self.node if grad_root is None else node_of(grad_root)
        extra = [] if outputs is None else [outputs] if isinstance(outputs, Operand) else list(outputs)
        fed = [v.node for v in targets if not v.is_parameter and not v.is_constant]
        with torch.enable_grad():
            every: list[Any] = [variable_of(root), *extra]
            network, feeds, results = self._run(at, every, device, True, fed)
            tensors = [_leaf(v.node, feeds) for v in targets]
            gradients = _differentiate([results[0].data.sum()], tensors, None)
        assign(network.batch)
        by_variable = _gradients(targets, tensors, gradients, feeds, as_numpy)
        result = next(iter(by_variable.values())) if len(by_variable) == 1 else by_variable
        if outputs is None:
            return result
        values = values_of(network, results[1:], as_numpy)
        return result, next(iter(values.values())) if len(values) == 1 else values


def check_below(roots: Sequence[Node], outputs: Iterable[Node]) -> None:
    """Check that outputs belong to the graph of ``roots``.

    Raises:
        ValueError: an output of another function.
    """
    foreign = set(outputs).difference(roots, topological(outside(roots)), topological(roots))
    if foreign:
        names = ", ".join(sorted(node.label for node in foreign))
        raise ValueError(f"expected outputs of this function, or of functions below it, got {names} of another one")


def values_of(network: Any, results: Sequence[Any], as_numpy: bool = True) -> dict[Variable, Any]:
    """Return results by variable. They belong to the network's last outputs."""
    values = {}
    for node, packed in zip(network.roots[len(network.roots) - len(results) :], results, strict=True):
        array = arrays_of(packed)
        values[variable_of(node)] = array if as_numpy else value_of(array)
    return values


def _copy(data: Any) -> Any:
    """Return data that shares no memory with the script's arrays."""
    return data.select(np.arange(data.num_sequences)) if isinstance(data, PackedRows) else data


def _differentiate(roots: Sequence[Any], tensors: Sequence[Any], weights: Any, keep: bool = False) -> Sequence[Any]:
    """Return a gradient for each tensor, None where no root depends on the tensor, or not differentiably."""
    import torch

    active = [i for i, root in enumerate(roots) if root.requires_grad]
    if not active or not any(tensor.requires_grad for tensor in tensors):
        return [None] * len(tensors)
    grad_outputs = None if weights is None else [weights[i] for i in active]
    places = [i for i, tensor in enumerate(tensors) if tensor.requires_grad]
    gradients = torch.autograd.grad(
        [roots[i] for i in active], [tensors[i] for i in places], grad_outputs, retain_graph=keep, allow_unused=True
    )
    by_place = dict(zip(places, gradients, strict=True))
    return [by_place.get(i) for i in range(len(tensors))]


def _leaf(node: Node, feeds: Mapping[Node, Any]) -> Any:
    if node.op == "parameter":
        return node.weights.tensor  # type: ignore[union-attr]
    packed = feeds.get(node)
    if packed is None or not hasattr(packed, "data"):
        raise ValueError(f"expected a parameter or an argument to take gradients of, got {node.label}")
    return packed.data


def _gradients(
    wrt: Sequence[Any], tensors: Sequence[Any], gradients: Sequence[Any], feeds: Mapping[Node, Any], as_numpy: bool
) -> dict[Any, Any]:
    import torch

    from feedline.networks.packed_minibatch import PackedRows as Rows

    arrays = {}
    for variable, tensor, gradient in zip(wrt, tensors, gradients, strict=True):
        rows = torch.zeros_like(tensor) if gradient is None else gradient
        packed = feeds.get(variable.node)
        array = arrays_of(Rows(rows, getattr(packed, "sequences", None)))
        arrays[variable] = array if as_numpy else value_of(array)
    return arrays
