"""User-defined operations in Python.

A `UserFunction` is a function whose roots are nodes ``user_output`` over one node ``user``, which has the object as an
attribute. Networks call it through `Call`. A copy of a graph calls its `clone`, as in CNTK.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from feedline.cntk._bound_values import BoundValue, unbound
from feedline.cntk._feeding import arrays_of, value_of
from feedline.cntk._names import absent_members
from feedline.cntk._nodes import needs_gradient, node_of
from feedline.cntk._replacing import current, replacement_of
from feedline.cntk.core import Value
from feedline.cntk.device import DeviceDescriptor, cpu, gpu
from feedline.cntk.ops._function import Function
from feedline.cntk.ops._outputs import Outputs
from feedline.cntk.variables import Variable, variable_of
from feedline.errors import CompatError, StateError
from feedline.networks import BATCH, Node, Type, apply, leaves
from feedline.networks.node import is_fixed

_UNKNOWN = Type((-2,), (BATCH,))  # what `infer_outputs` sees of an input whose type is not known yet


@absent_members("cntk.ops")
class UserFunction(Function):
    """Base class of operations in Python, which override `forward`, `backward` and `infer_outputs`.

    Args:
        inputs: variables to which it is applied.
        as_numpy: whether data are arrays, or values as CNTK's bindings have them: ``value.device()``,
            ``value.shape()``, ``value.deep_clone()``.
        attributes: attributes to keep.
        name: name of the operation.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, inputs: Sequence[Any], as_numpy: bool = True, attributes: Any = None, name: str = "") -> None:
        self._as_numpy = as_numpy
        self._user_inputs = [node_of(x) for x in inputs]
        self._user_name = name
        self._take([], [], {"user_attributes": attributes})

    def _infer_roots(self) -> None:
        """Infer the outputs when they are first needed, after the constructor of a subclass has run."""
        call = apply("user", self._user_inputs, {"user": self})
        outputs = self.described_outputs(self._user_inputs)
        self._roots = [
            apply("user_output", [call], {"index": i}, output.name or self._user_name)
            for i, output in enumerate(outputs)
        ]

    @property
    def _roots(self) -> list[Node]:
        if not self._root_nodes:
            self._infer_roots()
        return Outputs._roots.fget(self)  # type: ignore[attr-defined,no-any-return]

    @_roots.setter
    def _roots(self, roots: list[Node]) -> None:
        Outputs._roots.fset(self, roots)  # type: ignore[attr-defined]

    def described_outputs(self, inputs: Sequence[Node]) -> list[Variable]:
        """Return what `infer_outputs` returns if the function is applied to ``inputs``.

        Raises:
            RuntimeError: it raised an AttributeError, or returned no variables.
        """
        before, self._inferring = self._user_inputs, True
        self._user_inputs = [n if n.type.is_known else Node("placeholder", given=_UNKNOWN, name=n.name) for n in inputs]
        try:
            outputs = list(self.infer_outputs())
        except AttributeError as error:  # Python would hide it, as it looks for the attribute in `__getattr__`
            raise RuntimeError(f"{type(self).__name__}.infer_outputs: {error}") from error
        finally:
            self._user_inputs, self._inferring = before, False
        if not outputs or not all(isinstance(output, Variable) for output in outputs):
            raise RuntimeError(
                f"{type(self).__name__}.infer_outputs: expected a list of variables from output_variable, got {outputs}"
            )
        return outputs

    def __getattr__(self, name: str) -> Any:
        if self.__dict__.get("_inferring"):  # outputs, which could have this name, are not known yet
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return super().__getattr__(name)

    def output_types(self, inputs: Sequence[Node]) -> list[Type]:
        """Return the types of the outputs if the function is applied to ``inputs``."""
        return [output.node.type for output in self.described_outputs(inputs)]

    name = property(attrgetter("_user_name"), doc="Name of the operation.")

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Variables to which it is applied."""
        self._user_inputs = current([replacement_of(node) for node in self._user_inputs])
        return tuple(variable_of(node) for node in self._user_inputs)

    @property
    def user_inputs(self) -> list[Variable]:
        """Variables to which it is applied."""
        return list(self.inputs)

    @property
    def op_name(self) -> str:
        """Name of the kind of operation, for `register_udf_deserialize_callback`: module and class."""
        return type(self)._op_name()

    @classmethod
    def _op_name(cls) -> str:
        return f"{cls.__module__}.{cls.__name__}"

    def infer_outputs(self) -> list[Variable]:
        """Return the output variables, created by `cntk.output_variable`.

        It is called again for copies, and when the types of inputs become known. Until then their shape is (-2,).

        Raises:
            NotImplementedError: not overridden.
        """
        raise NotImplementedError("expected infer_outputs to be overridden: return [output_variable(...)]")

    # As in CNTK, these methods have other arguments than a function's.
    def forward(  # type: ignore[override]
        self, argument: Any, outputs: Any = None, device: Any = None, outputs_to_retain: Any = None
    ) -> Any:
        """Compute the output and return ``(state, result)``, or fill several ``outputs`` and return the state.

        With one output it is called as ``forward(argument, device, outputs_to_retain)``, with several as
        ``forward(argument, outputs, device, outputs_to_retain)``, without the last arguments if it does not take them.

        Args:
            argument: data of the only input, or a list of the data of all inputs.
            outputs: dictionary to fill, by output variable.
            device: device of the data.
            outputs_to_retain: set of the output variables that gradients are needed for.

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

    def clone(self, cloned_inputs: Sequence[Any]) -> UserFunction:  # type: ignore[override]
        """Return the function for a copy of the graph: the class, called with these inputs and the name.

        Override it if the constructor takes other arguments.
        """
        kind: Any = type(self)
        copy: UserFunction = kind(*cloned_inputs, name=self.name)
        return copy

    def serialize(self) -> Any:
        """Return the state to save, which `deserialize` gets: a dictionary as `Trainer.save_checkpoint` takes."""
        return {}

    @staticmethod
    def deserialize(inputs: Sequence[Variable], name: str, state: Any) -> UserFunction:
        """Return the function for a saved state. Subclasses override it.

        Raises:
            NotImplementedError: not overridden.
        """
        raise NotImplementedError(
            "expected deserialize(inputs, name, state) to be overridden, or a function that "
            "Function.register_udf_deserialize_callback registers"
        )

    def call(self, inputs: Sequence[Node], outputs: Sequence[Type]) -> Call:
        """Return the function as a network calls it, with known types of inputs and outputs."""
        needs = [any(map(needs_gradient, leaves([node], "parameter", "input"))) for node in inputs]
        return Call(self, [node.type for node in inputs], list(outputs), needs)


@dataclass(frozen=True)
class Call:
    """A user's function in a network.

    Attributes:
        user: function.
        inputs: types of the inputs.
        outputs: types of the outputs.
        needs_gradient: for each input, whether a parameter or an input that needs a gradient is below it.
    """

    user: UserFunction
    inputs: list[Type]
    outputs: list[Type]
    needs_gradient: list[bool]

    @property
    def constant_outputs(self) -> list[int]:
        """Indices of the outputs that no gradient passes."""
        described = self.user.described_outputs([node_of(v) for v in self.user.inputs])
        return [i for i, output in enumerate(described) if not output.needs_gradient]

    def forward(self, tensors: Sequence[Any], sequences: Sequence[Any], needs: Sequence[bool]) -> Any:
        """Call `UserFunction.forward` with data in CNTK's form, and return (state, results)."""
        user, keys = self.user, self.user.outputs
        data = [self._to_user(x, s) for x, s in zip(tensors, sequences, strict=True)]
        argument = data[0] if len(data) == 1 else data
        retained = set(keys) if any(needs) else set()
        device = _device_of(tensors[0]) if tensors else cpu()
        if len(keys) > 1:
            slots: dict[Any, Any] = dict.fromkeys(keys)
            state = _call(user.forward, argument, slots, device, retained)
            results = [slots[key] for key in keys]
        else:
            result = _call(user.forward, argument, device, retained)
            if not isinstance(result, tuple) or len(result) != 2:
                raise ValueError(
                    f"{type(user).__name__}.forward: expected (state, result), got {type(result).__name__}"
                )
            state, results = result[0], [result[1]]
        missing = [i for i, value in enumerate(results) if value is None]
        if missing:
            raise ValueError(f"{type(user).__name__}.forward: expected a value for each output, got none for {missing}")
        return state, [
            _from_user(y, tensors[0] if tensors else None, kind) for y, kind in zip(results, self.outputs, strict=True)
        ]

    def backward(self, state: Any, gradients: Sequence[Any], needs: Sequence[bool], sequences: Any) -> list[Any]:
        """Call `UserFunction.backward`, and return the gradients of the inputs."""
        user, keys, inputs = self.user, self.user.outputs, self.user.inputs
        data = [self._to_user(g, sequences[0] if sequences else None) for g in gradients]
        roots = data[0] if len(data) == 1 else dict(zip(keys, data, strict=True))
        if len(inputs) == 1:
            results: list[Any] = [user.backward(state, roots)]
        else:
            slots: dict[Any, Any] = {v: None for v, n in zip(inputs, needs, strict=True) if n}
            user.backward(state, roots, slots)
            results = [slots.get(v) for v in inputs]
        return [
            None if g is None or not n else _from_user(g, gradients[0], kind)
            for g, n, kind in zip(results, needs, self.inputs, strict=True)
        ]

    def _to_user(self, rows: Any, sequences: Any) -> Any:
        from feedline.networks.packed_minibatch import PackedRows as Rows

        arrays = arrays_of(Rows(rows, sequences))
        return arrays if self.user._as_numpy else BoundValue(value_of(arrays))


def _call(method: Callable[..., Any], *args: Any) -> Any:
    """Call a method with as many of the arguments as it takes."""
    kinds = [p.kind for p in inspect.signature(method).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return method(*args)
    taken = kinds.count(inspect.Parameter.POSITIONAL_ONLY) + kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return method(*args[:taken])


def _device_of(tensor: Any) -> DeviceDescriptor:
    return gpu(tensor.device.index or 0) if tensor.device.type == "cuda" else cpu()


def _from_user(result: Any, like: Any, kind: Type) -> Any:
    import torch

    shape, result = kind.shape or (), unbound(result)
    if isinstance(result, Value) and result.packed is not None:
        result = result.packed.rows
    if isinstance(result, (list, tuple)):
        result = np.concatenate([_samples(np.asarray(r), shape) for r in result])
    array = np.asarray(result)
    return torch.from_numpy(np.array(_samples(array, shape) if kind.axes else array)).to(like)


def _samples(array: Any, shape: tuple[int, ...]) -> Any:
    """Return samples (samples, *shape). Their last axes are the sample's where the shape leaves dimensions open."""
    if is_fixed(shape):
        return array.reshape(-1, *shape)
    return array.reshape(-1, *array.shape[array.ndim - len(shape) :])


# ---- files --------------------------------------------------------------------------------------------

_FACTORIES: dict[str, Callable[..., Any]] = {}


def register_factory(op_name: str, callback: Callable[..., Any]) -> None:
    """Make a function create the operations of this name when files are loaded.

    Raises:
        ValueError: the name has a function already.
    """
    if op_name in _FACTORIES:
        raise ValueError(f"expected a name without a function to load it, got {op_name!r} for the second time")
    _FACTORIES[op_name] = callback


def describe_user(user: UserFunction) -> dict[str, Any]:
    """Return a dictionary from which `create_user` creates the function again."""
    kind = type(user)
    return {
        "class": kind.__name__,
        "module": kind.__module__,
        "op_name": user.op_name,
        "name": user.name,
        "state": user.serialize(),
    }


def create_user(description: Mapping[str, Any], inputs: Sequence[Node]) -> UserFunction:
    """Return the function that `describe_user` described, over these inputs.

    Raises:
        CompatError: no function of this name is registered, and no such class with `deserialize` is defined.
        StateError: the function or class did not return a `UserFunction`.
    """
    name, module = str(description["class"])[:200], str(description["module"])[:200]
    op_name = str(description.get("op_name", f"{module}.{name}"))[:400]
    factory = _FACTORIES.get(op_name)
    if factory is None:
        # Only classes of modules that the program has imported, so that a file never makes code run.
        kinds = [kind for kind in _subclasses(UserFunction) if (kind.__module__, kind.__name__) == (module, name)]
        if not kinds:
            raise CompatError(
                f"UserFunction `{description['name'] or name}`: expected the class {module}.{name}, or a function that "
                f"Function.register_udf_deserialize_callback registers for {op_name!r}, got neither; import {module} "
                "before the file is loaded, or build the network, and take the parameters from the file by restore"
            )
        factory = kinds[-1].deserialize
        if factory is UserFunction.deserialize:
            raise CompatError(
                f"UserFunction `{description['name'] or name}`: expected a static method "
                f"deserialize(inputs, name, state) of {module}.{name}, got a class without: define it"
            )
    user = factory([variable_of(node) for node in inputs], description["name"], description.get("state"))
    if isinstance(user, Function) and not isinstance(user, UserFunction):
        user = user_of(user._roots[0]) or user
    if not isinstance(user, UserFunction):
        raise StateError(f"expected a UserFunction from deserialize of {op_name!r}, got {type(user).__name__}")
    return user


def user_of(node: Node) -> Any:
    """Return the user's function of a node, or None."""
    return node.inputs[0].attributes["user"] if node.op == "user_output" else None


def _subclasses(kind: Any) -> Iterator[Any]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
