"""`cntk.ops.functions`: functions, which are graphs with outputs, and what can be done with them.

A `Function` is a handle on nodes of a graph. Calling it on variables gives another one, which shares its parameters;
calling it on data runs it. A network is compiled at its first run and kept with the function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from feedline.cntk._feeding import arrays_of, feeds_of, rows_of, value_of
from feedline.cntk._names import explain
from feedline.cntk._nodes import node_of
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.variables import Operand, Variable, placeholder, variable_of
from feedline.graph import Node, apply, clone, find_all, leaves, replace
from feedline.graph.traverse import close, renamed, topological

__all__ = ["BlockFunction", "CloneMethod", "Function", "UserFunction", "load_model", "register_native_user_function"]


class CloneMethod(Enum):
    """What becomes of parameters in `Function.clone`."""

    share = "share"
    clone = "clone"
    freeze = "freeze"


class Function(Operand):
    """A graph with one or several outputs.

    Applied to a Python function, it is called once with placeholders, one for each of its parameters, and its result is
    the function: ``@Function def f(x, y): return x * y``.

    Args:
        f: a Python function of variables.
        make_block: its graph is one block, with this name of an operation.
        op_name: of the block.
        name: of the instance.
    """

    def __new__(cls, f: Any = None, make_block: bool = False, op_name: str = "", name: str = "") -> Any:
        if cls is not Function or f is None:
            return super().__new__(cls)
        if isinstance(f, Function):
            return f
        if not callable(f):
            raise TypeError(f"expected a Python function, got {type(f).__name__}")
        return _traced(f, [None] * len(_parameters_of(f)), make_block, op_name, name)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """All is done by `__new__`; functions are also made by `of`."""

    @classmethod
    def of(cls, roots: Sequence[Node], order: Sequence[Node] = (), members: Mapping[str, Any] | None = None) -> Function:
        """A function that gives ``roots``.

        Args:
            roots: its outputs.
            order: its arguments that come first, in this order.
            members: attributes by name, beside parameters.
        """
        function = object.__new__(Function)
        function._take(roots, order, members)
        return function

    def _take(self, roots: Sequence[Node], order: Sequence[Node], members: Mapping[str, Any] | None = None) -> None:
        self._roots, self._order, self._members = list(roots), list(order), dict(members or {})
        self._networks: dict[tuple[Node, ...], Any] = {}
        self.step: Any = None  # what `Recurrence` may run by a fused kernel; see cntk.layers.blocks

    @staticmethod
    def with_signature(*args: Any, **kwargs: Any) -> Callable[[Callable[..., Any]], Function]:
        """A decorator that gives the types of the parameters: each a dictionary of shape and dynamic axes."""

        def decorate(f: Callable[..., Any]) -> Function:
            names = _parameters_of(f)
            types = [*args, *[kwargs.get(name) for name in names[len(args) :]]]
            if len(types) != len(names):
                raise TypeError(f"expected a type for each of {', '.join(names)}, got {len(types)}")
            return _traced(f, types, False, "", "")

        return decorate

    @staticmethod
    def NamedOutput(**kwargs: Any) -> Any:
        """One result of a decorated function, with a name: ``NamedOutput(h=h)``."""
        if len(kwargs) != 1:
            raise TypeError(f"expected one named output, got {len(kwargs)}")
        return next(iter(kwargs.items()))

    # ---- what it is -------------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        """Of the only output.

        Raises:
            ValueError: there are several.
        """
        if len(self._roots) != 1:
            raise ValueError(f"expected a function with one output, got {len(self._roots)}: choose from .outputs")
        return self._roots[0]

    @property
    def output(self) -> Variable:
        """The only output. Raises ValueError if there are several."""
        return variable_of(self.node)

    @property
    def outputs(self) -> tuple[Variable, ...]:
        """All outputs."""
        return tuple(variable_of(root) for root in self._roots)

    @property
    def arguments(self) -> tuple[Variable, ...]:
        """Inputs and placeholders: what it is applied to."""
        found = leaves(self._roots, "input", "placeholder")
        first = [node for node in self._order if node in found]
        return tuple(variable_of(node) for node in [*first, *(n for n in found if n not in first)])

    @property
    def signature(self) -> tuple[Variable, ...]:
        """As `arguments`."""
        return self.arguments

    @property
    def placeholders(self) -> tuple[Variable, ...]:
        """Placeholders among its arguments."""
        return tuple(v for v in self.arguments if v.is_placeholder)

    @property
    def parameters(self) -> tuple[Any, ...]:
        """All parameters below it."""
        return tuple(variable_of(node) for node in leaves(self._roots, "parameter"))

    @property
    def constants(self) -> tuple[Any, ...]:
        """All constants below it."""
        return tuple(variable_of(node) for node in leaves(self._roots, "constant"))

    @property
    def inputs(self) -> tuple[Any, ...]:
        """All leaves below it."""
        kinds = ("input", "placeholder", "parameter", "constant")
        return tuple(variable_of(node) for node in leaves(self._roots, *kinds))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the only output."""
        return self.node.shape

    @property
    def dtype(self) -> Any:
        """Of the only output."""
        return self.output.dtype

    @property
    def dynamic_axes(self) -> Any:
        """Of the only output."""
        return self.output.dynamic_axes

    @property
    def is_sparse(self) -> bool:
        """Of the only output."""
        return self.output.is_sparse

    @property
    def name(self) -> str:
        """Of the first output."""
        return self._roots[0].name

    @name.setter
    def name(self, name: str) -> None:
        self._roots[0] = apply("alias", [self._roots[0]], {}, name) if self._roots[0].is_leaf else renamed(
            self._roots[0], name
        )

    @property
    def uid(self) -> str:
        """Unique in this process."""
        return "+".join(root.uid for root in self._roots)

    @property
    def op_name(self) -> str:
        """Operation, or kind of block, that gives the first output."""
        root = self._roots[0]
        return str(root.attributes.get("block", root.op))

    @property
    def attributes(self) -> dict[str, Any]:
        """Settings of the operation that gives the first output."""
        return dict(self._roots[0].attributes)

    @property
    def is_block(self) -> bool:
        """Whether the first output is that of a block."""
        return "block" in self._roots[0].attributes

    @property
    def is_composite(self) -> bool:
        """Whether it is more than one operation."""
        return any(not child.is_leaf for root in self._roots for child in root.inputs) or len(self._roots) > 1

    @property
    def is_primitive(self) -> bool:
        """Whether it is one operation."""
        return not self.is_composite and not self.is_block

    @property
    def root_function(self) -> Function:
        """Itself: functions are not wrapped here."""
        return self

    @property
    def owner(self) -> Function:
        """Itself, so that functions may stand where variables do."""
        return self

    @property
    def block_root(self) -> Function:
        """What is inside the block.

        Raises:
            ValueError: it is none.
        """
        if not self.is_block:
            raise ValueError(f"expected a block, got the operation {self.op_name!r}")
        return Function.of([self._roots[0].inputs[0]])

    @property
    def block_arguments_mapping(self) -> list[tuple[Variable, Variable]]:
        """What the block is applied to; its inside sees the same variables.

        Raises:
            ValueError: it is none.
        """
        if not self.is_block:
            raise ValueError(f"expected a block, got the operation {self.op_name!r}")
        return [(variable_of(n), variable_of(n)) for n in self._roots[0].inputs[1:]]

    @property
    def type(self) -> Any:
        """Of the only output."""
        return self.output.type

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "node":
            raise AttributeError(name)
        if name in self._members:
            return self._members[name]
        for output in self.outputs:
            if output.name == name:
                return output
        found = find_all(self._roots, lambda n: n.name == name and n.weights is not None)
        if len(found) == 1:
            return variable_of(found[0])
        if found:
            raise AttributeError(f"{len(found)} parameters or constants are called {name!r}: choose from .parameters")
        raise AttributeError(f"the function has no attribute, output, parameter or constant {name!r}")

    def __repr__(self) -> str:
        inputs = ", ".join(repr(v) for v in self.arguments)
        outputs = ", ".join(repr(v) for v in self.outputs)
        kind = "Composite" if self.is_composite else ""
        return f"{kind}({self.op_name}): {inputs} -> {outputs}" if kind else f"{self.op_name}({inputs}) -> {outputs}"

    # ---- composing --------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply it to variables and functions, which gives a function, or to data, which runs it.

        Args:
            *args: for its arguments in order; or one dictionary by variable.
            **kwargs: by name of an argument.
        """
        if len(args) == 1 and isinstance(args[0], Mapping) and not kwargs:
            given = {node_of(key): value for key, value in args[0].items()}
        else:
            given = self._bound(args, kwargs)
        if given and not any(isinstance(v, Operand) for v in given.values()):
            return self.eval({variable_of(node): value for node, value in given.items()})
        changes = {node: node_of(value) for node, value in given.items()}
        return self._with(replace(self._roots, changes), changes)

    def _with(self, roots: Sequence[Node], changes: Mapping[Node, Node]) -> Function:
        order = []
        for node in self._order:
            new = changes.get(node, node)
            if new.op in ("input", "placeholder"):
                order.append(new)
        function = Function.of(roots, order, self._members)
        return function

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[Node, Any]:
        arguments = self.arguments
        if len(args) > len(arguments):
            raise TypeError(f"expected at most {len(arguments)} arguments, got {len(args)}")
        given = {v.node: value for v, value in zip(arguments, args, strict=False)}
        for name, value in kwargs.items():
            named = [v.node for v in arguments if v.name == name]
            if len(named) != 1 or named[0] in given:
                raise TypeError(f"expected arguments {', '.join(v.name or v.uid for v in arguments)}, got {name!r}")
            given[named[0]] = value
        return given

    def __rshift__(self, other: Any) -> Any:
        from feedline.cntk.layers import Sequential

        return Sequential([self, other])

    def __rrshift__(self, other: Any) -> Any:
        from feedline.cntk.layers import Sequential

        return Sequential([other, self])

    def clone(self, method: Any = CloneMethod.clone, substitutions: Mapping[Any, Any] | None = None) -> Function:
        """A copy.

        Args:
            method: `CloneMethod` or its name: parameters are shared, copied, or frozen as constants.
            substitutions: variables that others stand for.

        Raises:
            ValueError: another method.
        """
        changes = {node_of(key): node_of(value) for key, value in (substitutions or {}).items()}
        how = method.value if isinstance(method, CloneMethod) else str(method)
        function = self._with(clone(self._roots, how, changes), changes)
        function.step = self.step if how == "share" else None
        return function

    def replace_placeholders(self, substitutions: Mapping[Any, Any]) -> Function:
        """Let other variables stand for placeholders, in this function itself.

        A placeholder that comes to stand for what depends on it ties a recurrence, through `sequence.past_value` or
        `sequence.future_value`.
        """
        changes = {node_of(key): node_of(value) for key, value in substitutions.items()}
        loops = {p: end for p, end in changes.items() if p in topological([end])}
        plain = {p: end for p, end in changes.items() if p not in loops}
        roots = replace(self._roots, plain)
        if loops:
            ends = replace(list(loops.values()), plain)
            roots = close(roots, dict(zip(loops, ends, strict=True)))[: len(roots)]
        self._order = [changes.get(n, n) for n in self._order if n not in loops]
        self._roots, self._networks = list(roots), {}
        return self

    def replace_placeholder(self, substitution: Any) -> Function:
        """As `replace_placeholders`, of the only one.

        Raises:
            ValueError: there are several, or none.
        """
        open_ones = self.placeholders
        if len(open_ones) != 1:
            raise ValueError(f"expected one placeholder, got {len(open_ones)}: use replace_placeholders")
        return self.replace_placeholders({open_ones[0]: substitution})

    def find_all_by_name(self, name: str, depth: int = 0) -> list[Any]:
        """All functions and variables of this name; ``depth`` is not looked at, blocks are open."""
        return [_found(node) for node in find_all(self._roots, lambda n: n.name == name)]

    def find_by_name(self, name: str, depth: int = 0) -> Any:
        """The function or variable of this name, None if there is none.

        Raises:
            ValueError: there are several.
        """
        found = self.find_all_by_name(name, depth)
        if len(found) > 1:
            raise ValueError(f"expected one node with the name {name!r}, got {len(found)}: use find_all_by_name")
        return found[0] if found else None

    def find_by_uid(self, uid: str, depth: int = 0) -> Any:
        """The function or variable with this `uid`, None if there is none."""
        found = find_all(self._roots, lambda n: n.uid == uid)
        return _found(found[0]) if found else None

    def argument_map(self, *args: Any, **kwargs: Any) -> dict[Variable, Any]:
        """What each argument would get from a call with these."""
        return {variable_of(node): value for node, value in self._bound(args, kwargs).items()}

    def update_signature(self, *args: Any, **kwargs: Any) -> None:
        """Give placeholders types: each a shape, a dictionary of shape and dynamic axes, or a variable."""
        changes = {}
        for node, given in self._bound(args, kwargs).items():
            kind = given if isinstance(given, Mapping) else {"shape": given.shape if hasattr(given, "shape") else given}
            changes[node] = _typed(kind, node.name).node
        self._roots = replace(self._roots, changes)
        self._order = [changes.get(n, n) for n in self._order]

    # ---- running ----------------------------------------------------------------------------------

    def network(self, outputs: Iterable[Any] | None = None) -> Any:
        """The `torch.nn.Module` that gives ``outputs``, or its own; compiled once."""
        from feedline.graph.compile import Network

        roots = tuple(self._roots if outputs is None else [node_of(o) for o in outputs])
        if roots not in self._networks:
            self._networks[roots] = Network(roots)
        return self._networks[roots]

    def _run(self, arguments: Any, outputs: Any, device: Any, training: bool, wanted: Sequence[Node] = ()) -> Any:
        """(network, feeds, results); rows of ``wanted`` inputs are leaves of autograd."""
        from feedline.data import Value as Packed
        from feedline.graph.packed import Packed as Rows

        chosen = None if outputs is None else [outputs] if isinstance(outputs, Operand) else list(outputs)
        network = self.network(chosen)
        if device is not None:
            network.to(device.torch())
        network.train(training)
        order = [v.node for v in self.arguments]
        feeds = feeds_of(arguments, network.inputs, order)
        for node in wanted:
            given = feeds.get(node)
            if isinstance(given, Packed):
                given = Rows.of(given, network.device, network.dtype, len(node.axes) > 1)
            if given is not None:
                given.data.requires_grad_(True)
                feeds[node] = given
        return network, feeds, network({node: feeds[node] for node in network.inputs if node in feeds})

    def eval(
        self, arguments: Any = None, outputs: Any = None, device: DeviceDescriptor | None = None, as_numpy: bool = True
    ) -> Any:
        """Run it, as in testing.

        Args:
            arguments: data by variable or name, in order, or of the only argument.
            outputs: variables to compute; None: its own.
            device: where to; None: where its parameters are.
            as_numpy: arrays, or else `Value`.

        Returns:
            for one output an array (N, *shape), or a list with one (length, *shape) a sequence; else a dictionary of
            such by variable.
        """
        import torch

        with torch.no_grad():
            network, _, results = self._run(arguments, outputs, device, False)
        found = _handed(network, results, as_numpy)
        return next(iter(found.values())) if len(found) == 1 else found

    def forward(
        self,
        arguments: Any,
        outputs: Any = None,
        keep_for_backward: Any = None,
        device: DeviceDescriptor | None = None,
        as_numpy: bool = True,
    ) -> tuple[Any, dict[Variable, Any]]:
        """Run it, as in training; the first result is for `backward`, None without ``keep_for_backward``."""
        import torch

        keep = bool(keep_for_backward)
        with torch.enable_grad() if keep else torch.no_grad():
            wanted = [v.node for v in self.arguments if v.is_input] if keep else []
            network, feeds, results = self._run(arguments, outputs, device, True, _dense(wanted, arguments, self))
        state = (network, feeds, results) if keep else None
        return state, _handed(network, results, as_numpy)

    def backward(
        self, state: Any, root_gradients: Mapping[Any, Any] | Any, variables: Iterable[Any], as_numpy: bool = True
    ) -> dict[Any, Any]:
        """Gradients of what `forward` gave, weighted by ``root_gradients``, with respect to ``variables``.

        Raises:
            ValueError: no state of `forward`.
        """
        import torch

        if state is None:
            raise ValueError("expected the state of forward(..., keep_for_backward=...), got None")
        network, feeds, results = state
        if not isinstance(root_gradients, Mapping):
            root_gradients = {variable_of(network.roots[0]): root_gradients}
        by_node = {node_of(key): value for key, value in root_gradients.items()}
        pairs = [(r.data, by_node[n], n) for n, r in zip(network.roots, results, strict=True) if n in by_node]
        wanted = list(variables)
        tensors = [_leaf(v.node, network, feeds) for v in wanted]
        gradients = torch.autograd.grad(
            [data for data, _, _ in pairs],
            tensors,
            [rows_of(g, data, n.shape) for data, g, n in pairs],
            retain_graph=True,
            allow_unused=True,
        )
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
        """Gradients of the sum of its output, or of ``grad_root``, over all samples.

        Args:
            at: data, as in `eval`.
            wrt: variables; None: all arguments that need gradients, or, without any, all inputs.
            outputs: variables to compute as well.
            device: where to.
            as_numpy: arrays, or else `Value`.
            grad_root: what is differentiated; None: the only output.

        Returns:
            for one variable its gradient, else a dictionary by variable; with ``outputs`` a pair of that and of their
            values.
        """
        import torch

        if wrt is None:
            inputs = [v for v in self.arguments if v.is_input]
            wrt = [v for v in inputs if v.needs_gradient] or inputs
        wanted = [wrt] if isinstance(wrt, Variable) else list(wrt)
        root = self.node if grad_root is None else node_of(grad_root)
        more = [] if outputs is None else [outputs] if isinstance(outputs, Operand) else list(outputs)
        inputs = [v.node for v in wanted if not v.is_parameter and not v.is_constant]
        with torch.enable_grad():
            every = [variable_of(root), *more]
            network, feeds, results = self._run(at, every, device, True, inputs)
            tensors = [_leaf(v.node, network, feeds) for v in wanted]
            gradients = torch.autograd.grad(results[0].data.sum(), tensors, allow_unused=True)
        found = _gradients(wanted, tensors, gradients, feeds, as_numpy)
        result = next(iter(found.values())) if len(found) == 1 else found
        if outputs is None:
            return result
        values = _handed(network, results, as_numpy, skip=1)
        return result, next(iter(values.values())) if len(values) == 1 else values

    # ---- files ------------------------------------------------------------------------------------

    def save(self, filename: str, format: Any = None) -> None:
        """Write it: the graph as JSON, the tensors as safetensors, in one file.

        Raises:
            ValueError: it has a user's function, which no file can hold.
            CompatError: another format.
        """
        from feedline.cntk._files import save

        save(filename, self._roots, [v.node for v in self.arguments], format)

    def restore(self, filename: str) -> None:
        """Take the values of parameters and constants from a file of a function of the same graph.

        Raises:
            StateError: it is of another graph.
        """
        from feedline.cntk._files import load, take_values

        take_values(self._roots, load(filename)[0])

    @staticmethod
    def load(model: str, device: DeviceDescriptor | None = None, format: Any = None) -> Function:
        """A function that `save` wrote.

        Raises:
            StateError: not such a file.
        """
        from feedline.cntk._files import load

        return Function.of(*load(model))

    def save_model(self, filename: str) -> None:
        """Former name of `save`."""
        self.save(filename)

    def restore_model(self, filename: str) -> None:
        """Former name of `restore`."""
        self.restore(filename)


def load_model(model: str, device: DeviceDescriptor | None = None) -> Function:
    """As `Function.load`."""
    return Function.load(model, device)


def BlockFunction(op_name: str, name: str = "") -> Callable[[Callable[..., Any]], Function]:
    """A decorator as `Function`, whose graph is one block."""
    return lambda f: Function(f, make_block=True, op_name=op_name, name=name)


class UserFunction(Function):
    """An operation in Python: override `forward`, `backward` and `infer_outputs`.

    Args:
        inputs: variables it is applied to.
        as_numpy: data as arrays, or else as torch tensors of rows.
        attributes: kept.
        name: its name.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, inputs: Sequence[Any], as_numpy: bool = True, attributes: Any = None, name: str = "") -> None:
        self._as_numpy = as_numpy
        nodes = [node_of(x) for x in inputs]
        self._user_inputs = [variable_of(n) for n in nodes]
        self._take(nodes[:1], [])
        self._user_outputs = [variable_of(v.node) for v in self.infer_outputs()]
        call = apply("user", nodes, {"user": self}, name)
        outputs = [v.node for v in self._user_outputs]
        self._take(
            [
                apply("user_output", [call], {"index": i, "shape": n.shape, "axes": n.axes}, n.name or name)
                for i, n in enumerate(outputs)
            ],
            [],
            {"user_attributes": attributes},
        )

    @property
    def user_inputs(self) -> list[Variable]:
        """What it was applied to."""
        return list(self._user_inputs)

    def infer_outputs(self) -> list[Variable]:
        """Output variables, made by `cntk.output_variable`.

        Raises:
            NotImplementedError: not overridden.
        """
        raise NotImplementedError("expected infer_outputs to be overridden: return [output_variable(...)]")

    def forward(self, argument: Any, outputs: Any = None, device: Any = None, outputs_to_retain: Any = None) -> Any:
        """Compute: return ``(state, result)``; with several outputs fill ``outputs`` and return the state.

        Raises:
            NotImplementedError: not overridden.
        """
        raise NotImplementedError("expected forward to be overridden: return (state, result)")

    def backward(self, state: Any, root_gradients: Any, variables: Any = None) -> Any:
        """Return the gradient of the only input; with several inputs fill ``variables``.

        Raises:
            NotImplementedError: not overridden.
        """
        raise NotImplementedError("expected backward to be overridden: return the gradient of the input")

    def forward_rows(self, tensors: Sequence[Any], sequences: Sequence[Any], needs: Sequence[bool]) -> Any:
        """(state, results): calls `forward` with data as CNTK hands it out."""
        given = [self._given(x, s, v) for x, s, v in zip(tensors, sequences, self._user_inputs, strict=True)]
        argument = given[0] if len(given) == 1 else given
        many = len(self._roots) > 1
        if many:
            results: Any = dict.fromkeys(self._user_outputs)
            state = self.forward(argument, results)
            made = [results[v] for v in self._user_outputs]
        else:
            state, single = self.forward(argument)
            made = [single]
        return state, [
            self._taken(y, tensors[0], root, sequences) for y, root in zip(made, self._roots, strict=True)
        ]

    def backward_rows(self, state: Any, gradients: Sequence[Any], needs: Sequence[bool], sequences: Any) -> list[Any]:
        """Gradients of the inputs: calls `backward`."""
        own = sequences[0] if sequences else None
        given = [self._given(g, own, v) for g, v in zip(gradients, self._user_outputs, strict=True)]
        like = gradients[0]
        if len(self._user_inputs) == 1 and len(given) == 1:
            found: list[Any] = [self.backward(state, given[0])]
        else:
            slots: dict[Any, Any] = {v: None for v, n in zip(self._user_inputs, needs, strict=True) if n}
            roots = given[0] if len(given) == 1 else dict(zip(self._user_outputs, given, strict=True))
            self.backward(state, roots, slots)
            found = [slots.get(v) for v in self._user_inputs]
        return [
            None if g is None or not n else self._taken(g, like, v.node, sequences)
            for g, n, v in zip(found, needs, self._user_inputs, strict=True)
        ]

    def _given(self, rows: Any, sequences: Any, variable: Variable) -> Any:
        from feedline.graph.packed import Packed as Rows

        if not self._as_numpy:
            return rows.detach()
        return arrays_of(Rows(rows, sequences), variable.node)

    def _taken(self, result: Any, like: Any, node: Node, sequences: Any) -> Any:
        import numpy as np
        import torch

        if isinstance(result, torch.Tensor):
            return result
        if isinstance(result, (list, tuple)):
            result = np.concatenate([np.asarray(r).reshape(-1, *node.shape) for r in result])
        array = np.asarray(result)
        return torch.from_numpy(np.array(array.reshape(-1, *node.shape) if node.axes else array)).to(like)


def register_native_user_function(*args: Any, **kwargs: Any) -> Any:
    """Not there: shared libraries of CNTK's binaries cannot be loaded."""
    from feedline.errors import CompatError

    raise CompatError("cntk.ops.register_native_user_function is not there: write a UserFunction, or a torch extension")


# ---- helpers ------------------------------------------------------------------------------------------


def _parameters_of(f: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(f).parameters.values() if p.kind in kinds and p.default is p.empty]


def _typed(kind: Any, name: str) -> Variable:
    if kind is None:
        return placeholder(name=name)
    if not isinstance(kind, Mapping):
        kind = {"shape": kind}
    return placeholder(kind.get("shape"), kind.get("dynamic_axes"), name)


def _traced(f: Callable[..., Any], types: Sequence[Any], block: bool, op_name: str, name: str) -> Function:
    """Call ``f`` with placeholders; what it returns is the function."""
    names = _parameters_of(f)
    arguments = [_typed(kind, label) for kind, label in zip(types, names, strict=True)]
    result = f(*arguments)
    outputs = result if isinstance(result, (tuple, list)) else [result]
    roots = []
    for output in outputs:
        label, operand = output if isinstance(output, tuple) else ("", output)
        for node in operand._roots if isinstance(operand, Function) else [node_of(operand)]:
            inside = apply("alias", [node], {}, label) if label else node
            roots.append(inside)
    order = [a.node for a in arguments]
    if block:
        roots = block_of(roots, order, op_name or getattr(f, "__name__", ""), name)
    function = Function.of(roots, order)
    if not op_name and not block:
        functools.update_wrapper(function, f, updated=())
    return function


def block_of(roots: Sequence[Node], arguments: Sequence[Node], op_name: str, name: str) -> list[Node]:
    """The outputs of a block: names for what is inside, and for what it is applied to."""
    single = len(roots) == 1
    return [
        apply("alias", [root, *arguments], {"block": op_name, "instance": name}, name if single and name else root.name)
        for root in roots
    ]


def _found(node: Node) -> Any:
    return variable_of(node) if node.is_leaf else Function.of([node])


def _handed(network: Any, results: Sequence[Any], as_numpy: bool, skip: int = 0) -> dict[Variable, Any]:
    found = {}
    for node, packed in list(zip(network.roots, results, strict=True))[skip:]:
        array = arrays_of(packed, node)
        found[variable_of(node)] = array if as_numpy else value_of(array)
    return found


def _dense(nodes: Sequence[Node], arguments: Any, function: Function) -> list[Node]:
    """Those that are fed dense rows, of which gradients can be taken."""
    feeds = feeds_of(arguments, nodes, [v.node for v in function.arguments])
    return [n for n in nodes if n in feeds and not getattr(feeds[n], "is_sparse", False)]


def _leaf(node: Node, network: Any, feeds: Mapping[Node, Any]) -> Any:
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

    from feedline.graph.packed import Packed as Rows

    found = {}
    for variable, tensor, gradient in zip(wanted, tensors, gradients, strict=True):
        rows = torch.zeros_like(tensor) if gradient is None else gradient
        given = feeds.get(variable.node)
        array = arrays_of(Rows(rows, getattr(given, "sequences", None)), variable.node)
        found[variable] = array if as_numpy else value_of(array)
    return found




def __getattr__(name: str) -> Any:
    raise explain("cntk.ops.functions", name)
