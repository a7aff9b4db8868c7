"""`cntk.variables`: operands of functions (inputs, placeholders, parameters, constants, outputs) and records.

A variable is a view of a node of the graph. Two views of the same node are equal. A parameter's tensor is a
`torch.nn.Parameter`, created at its first use. Importing this module requires only NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.cntk._names import absent_members, names_of
from feedline.cntk._nodes import axes_of, axis_names, default_dtype_name, dims, needs_gradient, shape_of, with_gradient
from feedline.cntk._op_names import variable_uid
from feedline.cntk._operand import Operand, registered_operation
from feedline.cntk._replacing import count as replacements
from feedline.cntk._replacing import current
from feedline.cntk.axis import Axis
from feedline.cntk.initializer import Initializer
from feedline.networks import Node, Weights
from feedline.networks.node import input_node, parameter_node, placeholder_node
from feedline.networks.traverse import element_type

__all__, __getattr__ = names_of(__name__)


class Record(dict[str, Any]):
    """An immutable dictionary from keywords, whose values are also attributes.

    Raises:
        AttributeError: a missing attribute, or an assignment.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"record has no attribute '{name}'; it has {', '.join(self) or 'none'}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a record cannot be changed, got an assignment to '{name}'; use updated_with")

    def updated_with(self, **values: Any) -> Record:
        """Return a new record with ``values`` replaced or added."""
        return Record(**{**self, **values})


def _is(op: str) -> Any:
    return property(lambda self: self.node.op == op, doc=f"Whether it is {'an' if op == 'input' else 'a'} {op}.")


@absent_members("cntk.variables")
class Variable(Operand):
    """An operand or an output of a function.

    Args:
        shape: shape of one sample.
        dtype: element type.
        needs_gradient: whether `Function.grad` differentiates with respect to it by default.
        is_sparse: whether its samples are sparse.
        dynamic_axes: dynamic axes of its data.
        name: name of the variable.
    """

    def __init__(
        self,
        shape: Any = None,
        dtype: Any = None,
        needs_gradient: bool = False,
        is_sparse: bool = False,
        dynamic_axes: Any = None,
        name: str = "",
    ) -> None:
        axes = (Axis.default_batch_axis(), Axis.default_dynamic_axis()) if dynamic_axes is None else dynamic_axes
        node = input_node(
            dims(() if shape is None else shape, free=True),
            axis_names(_as_list(axes)),
            name,
            bool(is_sparse),
            default_dtype_name(dtype),
        )
        self._take(with_gradient(node) if needs_gradient else node)

    def _take(self, node: Node) -> None:
        self._node, self._replacements = node, replacements()

    @property
    def node(self) -> Node:
        """Node of the variable in the graph."""
        if self._replacements != replacements():
            (self._node,), self._replacements = current([self._node]), replacements()
        return self._node

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample, -1 where it has to be inferred, and (-2,) while it depends on a placeholder."""
        return shape_of(self.node)

    @property
    def dtype(self) -> Any:
        """Element type, a NumPy scalar class."""
        return np.dtype(element_type(self.node)).type

    @property
    def dynamic_axes(self) -> tuple[Axis, ...]:
        """Axes of the batch and of sequences."""
        return axes_of(self.node)

    @property
    def name(self) -> str:
        """Name of the variable."""
        return self.node.name

    @property
    def uid(self) -> str:
        """Identifier, unique in this process."""
        return variable_uid(self.node)

    @property
    def needs_gradient(self) -> bool:
        """Whether `Function.grad` differentiates with respect to it by default."""
        return needs_gradient(self.node)

    @property
    def is_sparse(self) -> bool:
        """Whether its samples are sparse."""
        return self.node.sparse

    is_input = _is("input")
    is_placeholder = _is("placeholder")
    is_parameter = _is("parameter")
    is_constant = _is("constant")

    @property
    def is_output(self) -> bool:
        """Whether it is the output of a function."""
        return not self.node.is_leaf

    @property
    def owner(self) -> Any:
        """Function that computes it, or None for a leaf."""
        return None if self.node.is_leaf else registered_operation("operand_of")(self.node)

    def as_string(self) -> str:
        """Return the same text as `repr`."""
        return repr(self)

    def has_batch_axis(self) -> bool:
        """Return whether its data has the batch axis."""
        return any(axis.is_batch_axis for axis in self.dynamic_axes)

    def has_sequence_axis(self) -> bool:
        """Return whether its data has a sequence axis."""
        return any(axis.is_sequence_axis for axis in self.dynamic_axes)

    @property
    def type(self) -> Any:
        """Shape, element type, sparsity and dynamic axes."""
        axes = self.dynamic_axes
        return Record(shape=self.shape, dtype=self.dtype, is_sparse=self.is_sparse, dynamic_axes=axes)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function that computes it."""
        return self.owner(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self.node is other.node if isinstance(other, Variable) else NotImplemented

    def __hash__(self) -> int:
        # Constant while placeholders below it are replaced.
        return hash(self._node.uid)

    def __repr__(self) -> str:
        kind = self.node.op.capitalize() if self.node.is_leaf else "Output"
        shape = "???" if self.node.type.shape is None else list(self.node.type.shape)
        axes = [] if self.is_parameter or self.is_constant else ["#", "*"][: len(self.node.type.axes or ())]
        return f"{kind}('{self.name or self.uid}', [{', '.join(axes)}], {shape})"


class _Weighted(Variable):
    """A leaf that has a tensor."""

    def _weights(self) -> Weights:
        weights = self.node.weights
        assert weights is not None
        return weights

    @property
    def tensor(self) -> Any:
        """The `torch.nn.Parameter`, initialized at its first use. Learners update it in place."""
        from feedline.networks.compile import tensor_of

        return tensor_of(self._weights())

    @property
    def value(self) -> NDArray[Any]:
        """Copy of the tensor as an array, (*shape)."""
        array: NDArray[Any] = self.tensor.detach().cpu().numpy().copy()
        return array

    @value.setter
    def value(self, value: Any) -> None:
        """Set the tensor to an array of its shape, (*shape), which becomes its shape if it was unknown, or to a number.

        Raises:
            RuntimeError: an array of another shape.
        """
        import torch

        array = np.array(value.asarray() if hasattr(value, "asarray") else value)
        if not self._weights().is_fixed:
            self._weights().fix_shape(array.shape)
        if array.ndim and array.shape != self.shape:
            raise RuntimeError(
                f"expected a value of shape {self.shape} for {self!r}, got {array.shape}; reshape the array"
            )
        with torch.no_grad():
            self.tensor.copy_(torch.from_numpy(array))

    def asarray(self) -> NDArray[Any]:
        """Same as `value`."""
        return self.value

    def set_value(self, value: Any) -> None:
        """Set the tensor to a number, an array or an `NDArrayView`. See `value`."""
        self.value = value


@absent_members("cntk.variables")
class Parameter(_Weighted):
    """A tensor that learners update.

    Args:
        shape: shape, -1 where its first use decides. An array as ``init`` has precedence, as in CNTK.
        init: a number, an array or nested lists, (*shape), or an initializer of `cntk.initializer`.
        dtype: float32, float64 or float16. None means the dtype of `default_options`, or float32, even if ``init``
            differs.
        device: accepted for compatibility. Networks move the tensor.
        name: name of the parameter.

    Raises:
        ValueError: neither a shape nor an initial value.
    """

    def __init__(
        self, shape: Any = None, init: Any = None, dtype: Any = None, device: Any = None, name: str = ""
    ) -> None:
        self._take(_weights_node(shape, init, dtype, name, True))


@absent_members("cntk.variables")
class Constant(_Weighted):
    """A tensor that learners do not update.

    Args:
        value: a number, or an array or nested lists, (*shape).
        shape: shape to fill with a number. An array as ``value`` has precedence, as in CNTK.
        dtype: element type, as for parameters.
        device: accepted for compatibility. Networks move the tensor.
        name: name of the constant.
    """

    def __init__(
        self, value: Any = None, shape: Any = None, dtype: Any = None, device: Any = None, name: str = ""
    ) -> None:
        self._take(_weights_node(shape, value, dtype, name, False))


def _weights_node(shape: Any, init: Any, dtype: Any, name: str, trains: bool) -> Node:
    if isinstance(init, Initializer):
        if shape is None:
            raise ValueError("expected a shape with an initializer, got none")
        fill: Any = init.with_seed(default_dtype_name(dtype))
    else:
        if init is None and shape is None:
            raise ValueError("expected a shape or an initial value, got neither")
        # A copy: the tensor is initialized later, and the script may change its array until then.
        initial = np.array(0.0 if init is None else init.asarray() if hasattr(init, "asarray") else init)
        if initial.dtype.kind not in "biuf":
            raise TypeError(f"expected a number, an array or an initializer, got {init!r}")
        # A number fills the shape, but an array determines it.
        shape = initial.shape if shape is None or not (init is None or np.isscalar(init)) else shape

        def fill(target: tuple[int, ...], value: NDArray[Any] = initial) -> NDArray[Any]:
            return np.broadcast_to(value, target)

    weights = Weights(dims(shape), fill, default_dtype_name(dtype), trains, keeps=not trains and bool(name))
    return parameter_node(weights, name)


def array_dtype(value: Any, dtype: Any) -> Any:
    """Return the element type of `parameter` and `constant`: a floating point array's, else float32."""
    if dtype is not None:
        return dtype
    return value.dtype if isinstance(value, np.ndarray) and value.dtype.kind == "f" else np.float32


def variable_of(node: Node) -> Variable:
    """Return a variable of the node's kind."""
    kind: type[Variable] = {"parameter": Parameter, "constant": Constant}.get(node.op, Variable)
    variable = kind.__new__(kind)
    variable._take(node)
    return variable


def placeholder(shape: Any = None, dynamic_axes: Any = None, name: str = "") -> Variable:
    """Return a variable to be replaced by another."""
    axes = list(Axis.unknown_dynamic_axes()) if dynamic_axes is None else _as_list(dynamic_axes)
    names = None if axes == list(Axis.unknown_dynamic_axes()) else axis_names(axes)
    return variable_of(placeholder_node(None if shape is None else dims(shape, free=True), names, name))


def _as_list(axes: Any) -> list[Axis]:
    return [axes] if isinstance(axes, Axis) else list(axes)
