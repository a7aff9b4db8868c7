"""User-defined operations in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feedline.cntk._feeding import arrays_of
from feedline.cntk._names import absent_members
from feedline.cntk._nodes import node_of
from feedline.cntk.ops._function import Function
from feedline.cntk.ops._outputs import Outputs
from feedline.cntk.variables import Variable, variable_of
from feedline.networks import Node, apply
from feedline.networks.node import is_fixed


@absent_members("cntk.ops")
class UserFunction(Function):
    """Base class of operations in Python, which override `forward`, `backward` and `infer_outputs`.

    Args:
        inputs: variables to which it is applied.
        as_numpy: whether data are arrays, or torch tensors of rows.
        attributes: attributes to keep.
        name: name of the operation.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, inputs: Sequence[Any], as_numpy: bool = True, attributes: Any = None, name: str = "") -> None:
        self._as_numpy = as_numpy
        self._user_inputs = [variable_of(node_of(x)) for x in inputs]
        self._user_name, self._user_outputs = name, list[Variable]()
        self._take([], [], {"user_attributes": attributes})

    def _infer_roots(self) -> None:
        """Infer the outputs when they are first needed, after the constructor of a subclass has run."""
        self._user_outputs = [variable_of(v.node) for v in self.infer_outputs()]
        outputs = [v.node for v in self._user_outputs]
        call = apply("user", [v.node for v in self._user_inputs], {"user": self}, self._user_name)
        self._roots = [
            apply("user_output", [call], {"index": i, "shape": n.shape, "axes": n.axes}, n.name or self._user_name)
            for i, n in enumerate(outputs)
        ]

    @property
    def _roots(self) -> list[Node]:
        if not self._root_nodes:
            self._infer_roots()
        return Outputs._roots.fget(self)  # type: ignore[attr-defined,no-any-return]

    @_roots.setter
    def _roots(self, roots: list[Node]) -> None:
        Outputs._roots.fset(self, roots)  # type: ignore[attr-defined]

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Variables to which it is applied."""
        return tuple(self._user_inputs)

    @property
    def user_inputs(self) -> list[Variable]:
        """Variables to which it is applied."""
        return list(self._user_inputs)

    def infer_outputs(self) -> list[Variable]:
        """Return the output variables, created by `cntk.output_variable`.

        Raises:
            NotImplementedError: not overridden.
        """
        raise NotImplementedError("expected infer_outputs to be overridden: return [output_variable(...)]")

    # As in CNTK, these methods have other arguments than a function's.
    def forward(  # type: ignore[override]
        self, argument: Any, outputs: Any = None, device: Any = None, outputs_to_retain: Any = None
    ) -> Any:
        """Compute the output and return ``(state, result)``, or fill several ``outputs`` and return the state.

        Raises:
            NotImplementedError: not overridden.
        """
        raise NotImplementedError("expected forward to be overridden: return (state, result)")

    def backward(  # type: ignore[override]
        self, state: Any, root_gradients: Any, variables: Any = None
    ) -> Any:
        """Return the gradient of the only input, or fill ``variables`` with the gradients of several inputs.

        Raises:
            NotImplementedError: not overridden.
        """
        raise NotImplementedError("expected backward to be overridden: return the gradient of the input")

    def forward_rows(self, tensors: Sequence[Any], sequences: Sequence[Any], needs: Sequence[bool]) -> Any:
        """Call `forward` with data in CNTK's form, and return (state, results)."""
        data = [self._to_user(x, s) for x, s in zip(tensors, sequences, strict=True)]
        argument = data[0] if len(data) == 1 else data
        several = len(self._roots) > 1
        if several:
            slots: Any = dict.fromkeys(self._user_outputs)
            state = self.forward(argument, slots)
            results = [slots[v] for v in self._user_outputs]
        else:
            state, single = self.forward(argument)
            results = [single]
        return state, [self._from_user(y, tensors[0], root) for y, root in zip(results, self._roots, strict=True)]

    def backward_rows(self, state: Any, gradients: Sequence[Any], needs: Sequence[bool], sequences: Any) -> list[Any]:
        """Call `backward`, and return the gradients of the inputs."""
        data = [self._to_user(g, sequences[0] if sequences else None) for g in gradients]
        like = gradients[0]
        if len(self._user_inputs) == 1 and len(data) == 1:
            results: list[Any] = [self.backward(state, data[0])]
        else:
            slots: dict[Any, Any] = {v: None for v, n in zip(self._user_inputs, needs, strict=True) if n}
            roots = data[0] if len(data) == 1 else dict(zip(self._user_outputs, data, strict=True))
            self.backward(state, roots, slots)
            results = [slots.get(v) for v in self._user_inputs]
        return [
            None if g is None or not n else self._from_user(g, like, v.node)
            for g, n, v in zip(results, needs, self._user_inputs, strict=True)
        ]

    def _to_user(self, rows: Any, sequences: Any) -> Any:
        from feedline.networks.packed_minibatch import PackedRows as Rows

        if not self._as_numpy:
            return rows.detach()
        return arrays_of(Rows(rows, sequences))

    def _from_user(self, result: Any, like: Any, node: Node) -> Any:
        import numpy as np
        import torch

        if isinstance(result, torch.Tensor):
            return result
        if isinstance(result, (list, tuple)):
            result = np.concatenate([_samples(np.asarray(r), node.shape) for r in result])
        array = np.asarray(result)
        return torch.from_numpy(np.array(_samples(array, node.shape) if node.axes else array)).to(like)


def _samples(array: Any, shape: tuple[int, ...]) -> Any:
    """Return samples (samples, *shape). Their last axes are the sample's where the shape leaves dimensions open."""
    if is_fixed(shape):
        return array.reshape(-1, *shape)
    return array.reshape(-1, *array.shape[array.ndim - len(shape) :])
