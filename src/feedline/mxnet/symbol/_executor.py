"""Symbols bound to arrays, run by torch: the code of `mxnet.executor`.

`Executor.forward` fills ``outputs``. `Executor.backward` writes gradients into the arrays bound for them. Loss heads
produce their own gradients, but other outputs need head gradients. Arrays are used in place: a write to
``arg_dict["w"]`` takes effect at the next `forward`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from feedline.mxnet import ndarray as nd
from feedline.mxnet._names import absent_members
from feedline.mxnet.base import MXNetError
from feedline.mxnet.context import Context
from feedline.mxnet.ndarray import NDArray
from feedline.mxnet.symbol._infer import Inferred, by_variable, infer_shapes, infer_types, lengths
from feedline.mxnet.symbol._lower import lower
from feedline.mxnet.symbol._node import Entry, Node, variables, within
from feedline.mxnet.symbol._symbol import Symbol
from feedline.networks.compile import Network
from feedline.networks.packed_minibatch import PackedRows

Arrays = list[NDArray | None]


@absent_members("mxnet.executor")
class Executor:
    """A bound symbol, returned by `Symbol.bind` and `Symbol.simple_bind`.

    Attributes:
        arg_arrays: arguments, in the order of ``list_arguments``.
        grad_arrays: gradients of arguments, None for arguments without a gradient.
        aux_arrays: states.
        outputs: results of the last `forward`.
    """

    def __init__(
        self, symbol: Symbol, ctx: Context, arguments: Arrays, gradients: Arrays, requests: list[str], states: Arrays
    ) -> None:
        self._symbol, self._ctx, self._requests = symbol, ctx, requests
        self.arg_arrays, self.grad_arrays, self.aux_arrays = arguments, gradients, states
        self.outputs: list[NDArray] = []
        self._arguments, self._states = variables(symbol.entries)
        arrays = self._arrays = dict[Node, NDArray]()
        for node, array in zip((*self._arguments, *self._states), (*arguments, *states), strict=True):
            if array is None:
                raise MXNetError(f"expected an array for `{node.name}`, got none")
            arrays[node] = array
        shapes = infer_shapes(symbol.entries, {node: array.shape for node, array in arrays.items()})
        self._check(arrays, shapes)
        types = {node: np.dtype(array.dtype).name for node, array in arrays.items()}
        roots, self._leaves = lower(symbol.entries, shapes, types)
        self._network = Network(roots)
        self._tracked: dict[int, Any] | None = None
        self._results: list[Any] = []

    def _check(self, arrays: Mapping[Node, NDArray], shapes: Inferred) -> None:
        for node, array in arrays.items():
            if shapes.shape(node) != array.shape:
                raise MXNetError(f"expected shape {shapes.shape(node)} for `{node.name}`, got {array.shape}")
        for node, gradient in zip(self._arguments, self.grad_arrays, strict=True):
            if gradient is not None and gradient.shape != arrays[node].shape:
                raise MXNetError(
                    f"expected a gradient of shape {arrays[node].shape} for `{node.name}`, got {gradient.shape}"
                )

    # ---- arrays by name -------------------------------------------------------------------------------------

    @property
    def arg_dict(self) -> dict[str, NDArray]:
        """Arguments by name.

        Raises:
            ValueError: two arguments of the same name.
        """
        return _by_name(self._symbol.list_arguments(), self.arg_arrays)

    @property
    def grad_dict(self) -> dict[str, Any]:
        """Gradients by name, None for arguments without a gradient."""
        return _by_name(self._symbol.list_arguments(), self.grad_arrays)

    @property
    def aux_dict(self) -> dict[str, NDArray]:
        """States by name."""
        return _by_name(self._symbol.list_auxiliary_states(), self.aux_arrays)

    @property
    def output_dict(self) -> dict[str, NDArray]:
        """Outputs by name."""
        return _by_name(self._symbol.list_outputs(), self.outputs)

    def copy_params_from(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any] | None = None,
        allow_extra_params: bool = False,
    ) -> None:
        """Copy arrays into arguments and states of these names.

        Raises:
            ValueError: an unknown name, unless ``allow_extra_params``.
        """
        for arrays, params, kind in (
            (self.arg_dict, arg_params, "arguments"),
            (self.aux_dict, aux_params or {}, "auxiliary states"),
        ):
            for name, array in params.items():
                if name in arrays:
                    arrays[name][:] = array
                elif not allow_extra_params:
                    raise ValueError(f'Find name "{name}" that is not in the {kind}: {", ".join(arrays)}')

    # ---- running --------------------------------------------------------------------------------------------

    def forward(self, is_train: bool = False, **kwargs: Any) -> list[NDArray]:
        """Compute the outputs.

        With ``is_train`` dropout is active, statistics are updated, and what `backward` needs is kept.

        Args:
            is_train: whether to run in training mode.
            kwargs: arrays to copy into arguments first.

        Raises:
            TypeError: a name that is not an argument.
            ValueError: an array of another shape.
            MXNetError: an operator failed. The error names the node.
        """
        if kwargs:
            arguments = self.arg_dict
            for name, value in kwargs.items():
                if name not in arguments:
                    raise TypeError(f"Unknown argument {name}; expected one of {', '.join(arguments)}")
                array = value if isinstance(value, NDArray) else nd.array(value, self._ctx)
                if array.shape != arguments[name].shape:
                    raise ValueError(
                        f"Shape not match! Argument {name}, need: {arguments[name].shape}, received: {array.shape}"
                    )
                arguments[name][:] = array
        self._run(is_train, is_train)
        self.outputs = [NDArray(result.detach(), self._ctx) for result in self._results]
        return self.outputs

    def _run(self, is_train: bool, tracks: bool) -> None:
        """Run the operators, and record them for gradients if ``tracks``."""
        feeds: dict[Any, PackedRows] = {}
        self._tracked = {} if tracks else None
        device = self._ctx.device
        requests = self._requests + ["null"] * len(self._states)
        for i, ((node, array), request) in enumerate(zip(self._arrays.items(), requests, strict=True)):
            tensor = array.tensor.detach().to(device)
            if self._tracked is not None and request != "null" and tensor.is_floating_point():
                self._tracked[i] = tensor.requires_grad_()
            feeds[self._leaves[node]] = PackedRows(tensor)
        self._network.train(is_train)
        # Arrays that operators create are on the device, too. The CPU is torch's default, and faster without this.
        place = device if device.type != "cpu" else nullcontext()
        with torch.set_grad_enabled(tracks), place, within(self._symbol.name or "group"):
            self._results = [packed.data for packed in self._network(feeds)]

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """Compute the gradients of the last `forward`.

        After ``forward(is_train=False)``, which keeps nothing, the operators run once more, with the present arrays.

        Args:
            out_grads: head gradients: an NDArray, or one for each output. Loss heads ignore theirs, and need none.
            is_train: accepted for compatibility, without effect.

        Raises:
            MXNetError: no `forward` before it, or a head gradient is missing or of another shape.
        """
        if not self._results:
            raise MXNetError("expected a call of forward() before backward(), got none")
        if self._tracked is None:
            self._run(False, True)
        assert self._tracked is not None
        above = self._head_gradients(out_grads)
        inputs = list(self._tracked.values())
        pairs = [(y, g) for y, g in zip(self._results, above, strict=True) if y.requires_grad]
        gradients: Sequence[Any] = [None] * len(inputs)
        if pairs and inputs:
            ys, gs = zip(*pairs, strict=True)
            with within(self._symbol.name or "group"):
                gradients = torch.autograd.grad(ys, inputs, gs, retain_graph=True, allow_unused=True)
        for i, gradient in zip(self._tracked, gradients, strict=True):
            target = self.grad_arrays[i]
            if target is None:
                continue
            if self._requests[i] == "write":
                target.tensor.zero_()
            if gradient is not None:
                target.tensor.add_(gradient.to(target.tensor.device))

    def _head_gradients(self, out_grads: Any) -> list[Any]:
        passed = [out_grads] if isinstance(out_grads, NDArray) else list(out_grads or [])
        if passed and len(passed) != len(self._results):
            raise MXNetError(f"expected {len(self._results)} head gradients, one per output, got {len(passed)}")
        gradients = []
        outputs = zip(self._symbol.list_outputs(), self._symbol.entries, self._results, strict=True)
        for i, (name, entry, result) in enumerate(outputs):
            if passed and passed[i] is not None:
                tensor = passed[i].tensor.to(result.device, result.dtype)
                if tensor.shape != result.shape:
                    raise MXNetError(
                        f"expected a gradient of shape {tuple(result.shape)} for {name}, got {tuple(tensor.shape)}"
                    )
            elif result.requires_grad and _needs_head_gradient(entry):
                raise MXNetError(f"expected out_grads, got none for {name}, which is not a loss")
            else:
                tensor = torch.ones_like(result)
            gradients.append(tensor)
        return gradients

    def reshape(self, partial_shaping: bool = False, allow_up_sizing: bool = False, **kwargs: Any) -> Executor:
        """Return an executor for other shapes of data. It shares arrays of unchanged shape and has zeros elsewhere.

        Raises:
            MXNetError: shapes that do not fit, or a parameter's shape would change without ``partial_shaping``.
        """
        shapes, _, aux_shapes = self._symbol.infer_shape(**kwargs)
        if shapes is None:
            raise MXNetError(f"expected shapes from which all others follow, got {kwargs}")
        names = self._symbol.list_arguments()
        arguments: Arrays = []
        gradients: Arrays = []
        for name, shape, array, gradient in zip(names, shapes, self.arg_arrays, self.grad_arrays, strict=True):
            assert array is not None
            if shape != array.shape and not partial_shaping and name not in kwargs:
                raise MXNetError(
                    f"expected `{name}` to keep shape {array.shape}, got {shape}; pass partial_shaping=True"
                )
            fits = shape == array.shape
            arguments.append(array if fits else nd.zeros(shape, self._ctx, array.dtype))
            gradients.append(gradient if fits or gradient is None else nd.zeros(shape, self._ctx, gradient.dtype))
        states = [
            array if array is not None and array.shape == shape else nd.zeros(shape, self._ctx)
            for array, shape in zip(self.aux_arrays, aux_shapes, strict=True)
        ]
        return Executor(self._symbol, self._ctx, arguments, gradients, self._requests, states)


def _needs_head_gradient(entry: Entry) -> bool:
    """Return whether a head gradient reaches a variable instead of ending at loss heads."""
    stack, visited = [entry.node], {entry.node}
    while stack:
        node = stack.pop()
        if node.operator is None:
            return True
        if node.operator.name == "BlockGrad" or (node.operator.head and not getattr(node.p, "out_grad", False)):
            continue
        fresh = [e.node for e in node.inputs if e.node not in visited]
        visited.update(fresh)
        stack += fresh
    return False


def _by_name(names: Sequence[str], arrays: Sequence[Any]) -> dict[str, Any]:
    if len(set(names)) != len(names):
        raise ValueError(f"Duplicate names detected, {list(names)}")
    return dict(zip(names, arrays, strict=True))


def _requests(symbol: Symbol, grad_req: Any) -> list[str]:
    names = symbol.list_arguments()
    if isinstance(grad_req, str):
        requests = [grad_req] * len(names)
    elif isinstance(grad_req, Mapping):
        requests = [grad_req.get(name, "null") for name in names]
    else:
        requests = list(grad_req)
    if len(requests) != len(names) or any(request not in ("write", "add", "null") for request in requests):
        raise MXNetError(f"expected grad_req write, add or null for each of {len(names)} arguments, got {grad_req!r}")
    return requests


def _as_list(what: str, names: Sequence[str], arrays: Any, partial: bool) -> Arrays:
    if arrays is None:
        arrays = {}
    if isinstance(arrays, Mapping):
        missing = [name for name in names if name not in arrays]
        if missing and not partial:
            raise MXNetError(f"expected {what} for {', '.join(names)}, got none for {', '.join(missing)}")
        return [arrays.get(name) for name in names]
    if len(arrays) != len(names):
        raise MXNetError(f"expected {len(names)} {what} for {', '.join(names)}, got {len(arrays)}")
    return list(arrays)


def bind(symbol: Symbol, ctx: Any, args: Any, args_grad: Any, grad_req: Any, aux_states: Any) -> Executor:
    """See `Symbol.bind`."""
    arguments = _as_list("arguments", symbol.list_arguments(), args, False)
    states = _as_list("auxiliary states", symbol.list_auxiliary_states(), aux_states, False)
    gradients = _as_list("gradients", symbol.list_arguments(), args_grad, True)
    requests = _requests(symbol, grad_req)
    # A gradient without an array is not computed.
    requests = ["null" if g is None else r for g, r in zip(gradients, requests, strict=True)]
    return Executor(symbol, Context(ctx), arguments, gradients, requests, states)


def simple_bind(
    symbol: Symbol,
    ctx: Any,
    grad_req: Any,
    type_dict: Mapping[str, Any],
    group2ctx: Mapping[str, Any],
    shapes: Mapping[str, Any],
) -> Executor:
    """See `Symbol.simple_bind`."""
    arguments, states = variables(symbol.entries)
    inferred = infer_shapes(symbol.entries, by_variable(symbol.entries, (), shapes, lengths))
    unknown = [node.name for node in (*arguments, *states) if not inferred.knows(node)]
    if unknown:
        raise MXNetError(f"simple_bind error: expected sufficient shapes, got {dict(shapes)}; unknown: {unknown}")
    kinds = by_variable(symbol.entries, (), type_dict, lambda dtype: np.dtype(dtype).name)
    if not type_dict:
        kinds = {node: "float32" for node in arguments if "__dtype__" not in node.attributes}
    types = infer_types(symbol.entries, kinds, "float32")
    context, requests = Context(ctx), _requests(symbol, grad_req)
    arrays = [
        nd.zeros(
            inferred.shape(node),
            Context(group2ctx.get(node.attributes.get("__ctx_group__", ""), context)),
            types.type(node) or "float32",
        )
        for node in (*arguments, *states)
    ]
    args: Arrays = list(arrays[: len(arguments)])
    gradients: Arrays = [
        None if request == "null" else nd.zeros(array.shape, array.context, array.dtype)
        for request, array in zip(requests, arrays[: len(arguments)], strict=True)
    ]
    return Executor(symbol, context, args, gradients, requests, list(arrays[len(arguments) :]))
