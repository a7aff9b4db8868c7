"""`Function`: construct, apply, rewrite, search, train and save the outputs of a graph.

A `Function` is a handle on nodes of a graph. Calling it on variables returns another function with the same parameters.
Calling it on data runs it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace as changed
from enum import Enum
from pathlib import Path
from typing import Any

from feedline.cntk import _files
from feedline.cntk._names import NAMES, absent_members, explain
from feedline.cntk._nodes import node_of
from feedline.cntk._op_names import function_uid, variable_uid
from feedline.cntk._operand import Operand, registered_operation
from feedline.cntk._order import search_order
from feedline.cntk._replacing import replace_in_place
from feedline.cntk._tracing import has_name, parameters_of, roots_of, trace, typed_placeholder, types_of
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.ops._evaluation import Evaluable
from feedline.cntk.variables import Variable, variable_of
from feedline.errors import CompatError
from feedline.networks import Node, clone, leaves, replace
from feedline.networks.loop_outputs import outside, remember
from feedline.networks.node import fits, fresh_uid, is_fixed, placeholder_node
from feedline.networks.traverse import remade, topological


class CloneMethod(Enum):
    """How `Function.clone` treats parameters."""

    share = "share"
    clone = "clone"
    freeze = "freeze"


class ModelFormat(Enum):
    """Formats of `Function.save` and `Function.load`: CNTK's, and ONNX. Without one, `save` writes feedline's."""

    CNTKv2 = 0
    ONNX = 1


@absent_members("cntk.ops")
class Function(Evaluable):
    """A graph with one or several outputs.

    As a decorator it calls a Python function once, with a placeholder for each parameter, and returns the graph of the
    result: ``@Function def f(x, y): return x * y``.

    Args:
        f: Python function of variables.
        make_block: whether to wrap the graph in a block.
        op_name: name of the block's operation.
        name: name of the instance.
    """

    _members: dict[str, Any]

    def __new__(cls, f: Any = None, make_block: bool = False, op_name: str = "", name: str = "") -> Any:
        if cls is not Function or f is None:
            return super().__new__(cls)
        if isinstance(f, Function):
            return f
        if not callable(f):
            raise TypeError(f"expected a Python function, got {type(f).__name__}")
        return cls.of(*trace(f, types_of(f), make_block, op_name, name))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: `__new__` and `of` construct functions."""

    @classmethod
    def of(
        cls, roots: Sequence[Node], order: Sequence[Node] = (), members: Mapping[str, Any] | None = None
    ) -> Function:
        """Return a function of some outputs.

        Args:
            roots: nodes of the outputs.
            order: arguments that come first, in this order.
            members: additional attributes by name.
        """
        function = object.__new__(Function)
        function._take(roots, order, members)
        return function

    def _take(self, roots: Sequence[Node], order: Sequence[Node], members: Mapping[str, Any] | None = None) -> None:
        self._roots = list(roots)
        self._order, self._members = list(order), dict(members or {})
        self.step: Any = None  # step that `Recurrence` may run by a fused kernel, see cntk.layers.blocks

    @staticmethod
    def with_signature(*args: Any, **kwargs: Any) -> Callable[[Callable[..., Any]], Function]:
        """Return a decorator that sets the types of parameters. See `cntk.layers.typing`. None means that a type is
        inferred."""

        def decorate(f: Callable[..., Any]) -> Function:
            names = parameters_of(f)
            types = [*args, *[kwargs.get(name) for name in names[len(args) :]]]
            if len(types) != len(names):
                raise TypeError(f"expected a type for each of {', '.join(names)}, got {len(types)}")
            return Function.of(*trace(f, types, False, "", ""))

        return decorate

    @staticmethod
    def NamedOutput(**kwargs: Any) -> Any:
        """Name one result of a decorated function: ``NamedOutput(h=h)``."""
        if len(kwargs) != 1:
            raise TypeError(f"expected one named output, got {len(kwargs)}")
        return next(iter(kwargs.items()))

    # ---- composing --------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the function: to variables and functions, which returns a function, or to data, which runs it.

        On data it returns the result of `eval`, or with several outputs a tuple, in their order.

        Args:
            *args: values of the arguments in order, or a dictionary by variable.
            **kwargs: values by name of the argument.

        Raises:
            TypeError: an operand with samples of another shape than those of the input.
        """
        if len(args) == 1 and isinstance(args[0], Mapping) and not kwargs:
            values = {self._find_node(key): value for key, value in args[0].items()}
        else:
            values = self._bind(args, kwargs)
        if values and not any(isinstance(v, Operand) for v in values.values()):
            results = self.eval({variable_of(node): value for node, value in values.items()})
            return tuple(results[output] for output in self.outputs) if len(self._roots) > 1 else results
        changes = {node: node_of(value) for node, value in values.items()}
        _check_shapes(changes)
        return self._with(replace(self._roots, changes, _copied), changes)

    def _with(self, roots: Sequence[Node], changes: Mapping[Node, Node]) -> Function:
        order = []
        for node in self._order:
            new = changes.get(node, node)
            if new.op in ("input", "placeholder"):
                order.append(new)
        return Function.of(roots, order, self._members)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[Node, Any]:
        arguments = self.arguments
        if len(args) > len(arguments):
            raise TypeError(f"expected at most {len(arguments)} arguments, got {len(args)}")
        values = {v.node: value for v, value in zip(arguments, args, strict=False)}
        for name, value in kwargs.items():
            node = self._find_node(name)
            if node in values:
                raise TypeError(f"expected one value for {name!r}, got two")
            values[node] = value
        return values

    def _find_node(self, key: Any) -> Node:
        """Return the argument that a variable or a name refers to."""
        if not isinstance(key, str):
            return node_of(key)
        named = [v.node for v in self.arguments if v.name == key]
        if len(named) != 1:
            raise TypeError(f"expected arguments {', '.join(v.name or v.uid for v in self.arguments)}, got {key!r}")
        return named[0]

    def __getitem__(self, key: Any) -> Any:
        """Return an output by its number, or for a function with one output a part of each sample."""
        return self.outputs[key] if len(self._roots) > 1 else super().__getitem__(key)

    def __rshift__(self, other: Any) -> Any:
        # `Sequential` would replace operands that are already bound.
        results = registered_operation("then")(other, self.outputs if len(self._roots) > 1 else (self,))
        return Function.of([node for item in results for node in roots_of(item)], self._order)

    def __rrshift__(self, other: Any) -> Any:
        return registered_operation("Sequential")([other, self])

    def clone(self, method: Any = CloneMethod.clone, substitutions: Mapping[Any, Any] | None = None) -> Function:
        """Return a copy, with new inputs and placeholders.

        Args:
            method: `CloneMethod` or its name: share parameters, copy them, or freeze them and copies of the constants.
            substitutions: variables to replace, with their replacements. One that is computed from other inputs of
                this function, or from the output that it replaces, is copied too. If it is computed from that
                output, through `sequence.past_value` or `sequence.future_value` in the copy, the copy is a recurrence.

        Raises:
            ValueError: unknown method.
            TypeError: a replacement with samples of another shape than those of the input.
        """
        inputs = leaves(outside(self._roots), "input", "placeholder")
        changes = {node: changed(node, uid=fresh_uid()) for node in inputs}
        replacements = {node_of(key): node_of(value) for key, value in (substitutions or {}).items()}
        _check_shapes(replacements)
        changes |= replacements
        # Copied with the function and put in place afterwards, as a replacement may close a recurrence in the copy.
        shared = [node for node in inputs if node not in replacements]
        inner = [(node, new) for node, new in replacements.items() if node not in self._roots]
        copied = {node: new for node, new in inner if _is_copied(node, new, shared)}
        for node, new in copied.items():
            kind = node.type if node in topological([new]) else new.type
            changes[node] = placeholder_node(kind.shape, kind.axes, node.name)
        how = method.value if isinstance(method, CloneMethod) else str(method)
        copies = clone([*self._roots, *copied.values()], how, changes, _copied)
        function = self._with(copies[: len(self._roots)], changes)
        ends = copies[len(self._roots) :]
        if copied:
            replace_in_place(function._roots, {changes[node]: end for node, end in zip(copied, ends, strict=True)})
        function.step = self.step if how == "share" else None
        return function

    def replace_placeholders(self, substitutions: Mapping[Any, Any]) -> Function:
        """Replace placeholders, in this function and in all functions that share its nodes.

        Replacing a placeholder by something that depends on it closes a recurrence, through `sequence.past_value` or
        `sequence.future_value`.

        Raises:
            ValueError: a variable that is not a placeholder of the function, or shapes or axes that do not fit.
        """
        changes = {node_of(key): node_of(value) for key, value in substitutions.items()}
        allowed = [v.node for v in self.placeholders]
        unknown = [p for p in changes if p not in allowed]
        if unknown:
            raise ValueError(
                f"expected placeholders of the function, {', '.join(p.label for p in allowed) or 'which has none'}, "
                f"got {', '.join(p.label for p in unknown)}"
            )
        replace_in_place(self._roots, changes)
        return self

    def replace_placeholder(self, substitution: Any) -> Function:
        """Replace the only placeholder.

        Raises:
            ValueError: several placeholders, or none.
        """
        open_ones = self.placeholders
        if len(open_ones) != 1:
            raise ValueError(f"expected one placeholder, got {len(open_ones)}: use replace_placeholders")
        return self.replace_placeholders({open_ones[0]: substitution})

    def find_all_by_name(self, name: str, depth: int = 0) -> list[Any]:
        """Return all functions and variables of a name, within ``depth`` nested blocks (-1: all)."""
        below = operands_in(self._roots, [n for n in search_order(self._roots, depth) if has_name(n, name)])
        return [self, *below] if self._combination == name != "" else below

    def find_by_name(self, name: str, depth: int = 0) -> Any:
        """Return the function or variable of a name, or None.

        Raises:
            ValueError: several have this name.
        """
        matches = self.find_all_by_name(name, depth)
        if len(matches) > 1:
            raise ValueError(f"expected one node with the name {name!r}, got {len(matches)}: use find_all_by_name")
        return matches[0] if matches else None

    find_all_with_name = find_all_by_name

    def find_by_uid(self, uid: str, depth: int = 0) -> Any:
        """Return the function or variable with this `uid`, or None. See `find_all_by_name`."""
        matches = [n for n in search_order(self._roots, depth) if uid in (function_uid(n), variable_uid(n))]
        return operands_in(self._roots, matches[:1])[0] if matches else None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "node":
            raise AttributeError(name)
        if name in self._members:
            return self._members[name]
        if f"Function.{name}" in NAMES["cntk.ops"].absent:  # after its descriptor, whose error Python drops
            raise explain("cntk.ops", f"Function.{name}")
        for output in self.outputs if len(self._roots) > 1 else ():
            if output.name == name:
                return output
        # Names inside a block take precedence over names of its operands.
        matches = _nodes_with_name(self._inside(), name) or _nodes_with_name(topological(self._roots), name)
        if len(matches) == 1:
            return operands_in(self._roots, matches)[0]
        if matches:
            raise AttributeError(
                f"expected one parameter, constant or function {name!r}, got {len(matches)}; use find_all_by_name"
            )
        raise AttributeError(f"this function has no attribute, output, parameter, constant or function {name!r}")

    def _inside(self) -> list[Node]:
        """Return the nodes inside the blocks, without their operands, or all nodes if there are no blocks."""
        border = {child for root in self._roots if "block" in root.attributes for child in root.inputs[1:]}
        return topological(self._roots, lambda node: [child for child in node.inputs if child not in border])

    @property
    def block_root(self) -> Function:
        """The function inside the block.

        Raises:
            ValueError: the function is not a block.
        """
        return Function.of(self._block().inputs[:1])

    def argument_map(self, *args: Any, **kwargs: Any) -> dict[Variable, Any]:
        """Return the value that a call with these arguments would bind to each variable."""
        return {variable_of(node): value for node, value in self._bind(args, kwargs).items()}

    def update_signature(self, *args: Any, **kwargs: Any) -> None:
        """Set types of placeholders, each a shape, a dictionary of shape and dynamic axes, or a variable."""
        changes = {}
        for node, value in self._bind(args, kwargs).items():
            kind = value.type if isinstance(value, (Function, Variable)) else value
            changes[node] = typed_placeholder(kind, node.name).node
        replace_in_place(self._roots, changes)

    # ---- training ---------------------------------------------------------------------------------

    def train(
        self,
        minibatch_source: Any,
        minibatch_size: Any = 32,
        streams: Any = None,
        model_inputs_to_streams: Any = None,
        parameter_learners: Any = (),
        callbacks: Any = (),
        progress_frequency: int | None = None,
        max_epochs: float | None = None,
        epoch_size: int | None = None,
        max_samples: int | None = None,
    ) -> Any:
        """Train by this criterion, a loss or a loss and a metric: `Trainer` and `training_session` in one.

        Args:
            minibatch_source: source, or tuple of arrays, one for each argument.
            minibatch_size: number of samples, or a schedule from `minibatch_size_schedule`.
            streams: streams of the source, one for each argument.
            model_inputs_to_streams: the same as a dictionary by variable.
            parameter_learners: learners that update the parameters.
            callbacks: progress writers, and at most one each of `CheckpointConfig`, `CrossValidationConfig` and
                `TestConfig`.
            progress_frequency: samples between summaries. None means ``epoch_size``.
            max_epochs: number of epochs. None means one.
            epoch_size: samples in an epoch. None means all samples of the arrays.
            max_samples: number of samples, instead of ``max_epochs``.

        Returns:
            A `Record` of ``epoch_summaries`` and ``updates``, lists of records of ``loss``, ``metric`` and ``samples``,
            and of a ``test_summary`` with a `TestConfig`.

        Raises:
            ValueError: a source without ``epoch_size`` or ``max_samples``, arguments that exclude each other, or an
                unknown callback.
        """
        return registered_operation("train")(
            self,
            minibatch_source,
            minibatch_size,
            self._streams(streams, model_inputs_to_streams),
            parameter_learners,
            callbacks,
            progress_frequency,
            max_epochs,
            epoch_size,
            max_samples,
        )

    def test(
        self,
        minibatch_source: Any,
        minibatch_size: Any = 32,
        streams: Any = None,
        model_inputs_to_streams: Any = None,
        callbacks: Any = (),
    ) -> Any:
        """Return the average metric, or loss without a metric, over a source or arrays. See `train`.

        Returns:
            A `Record` of ``metric`` and ``samples``.

        Raises:
            ValueError: a source without an end.
        """
        mapped = self._streams(streams, model_inputs_to_streams)
        return registered_operation("test")(self, minibatch_source, minibatch_size, mapped, callbacks or ())

    def _streams(self, streams: Any, by_variable: Any) -> Any:
        if streams and by_variable:
            raise ValueError("expected streams or model_inputs_to_streams, got both")
        return self.argument_map(*streams) if streams else by_variable

    # ---- files ------------------------------------------------------------------------------------

    def save(self, filename: str, format: Any = None) -> None:
        """Write the function to a file.

        Args:
            filename: path of the file. Missing folders are created.
            format: None for feedline's own, which has all operations, with the graph as JSON and the tensors as
                safetensors; `ModelFormat.CNTKv2` for the protobuf message that CNTK 2.7 reads; or `ModelFormat.ONNX`.

        Raises:
            ValueError: a user's function with a state of other types than `Trainer.save_checkpoint` takes, an unknown
                shape, or an unknown format.
            CompatError: an operation that the other formats do not have. The error names it.
            ModuleNotFoundError: the package of the extra ``cntk`` or ``onnx`` is not installed.
        """
        _files.save(filename, self._roots, [v.node for v in self.arguments], _format(format))

    def restore(self, filename: str) -> None:
        """Load values of parameters and constants.

        Args:
            filename: path of a file that a function with the same graph saved, or of a model of CNTK with the same
                parameters, by shape, name and order.

        Raises:
            StateError: the file contains another graph, or other parameters.
        """
        _files.restore(filename, self._roots, [v.node for v in (*self.parameters, *self.constants)])

    @staticmethod
    def load(model: Any, device: DeviceDescriptor | None = None, format: Any = None) -> Function:
        """Load a function.

        Args:
            model: path of a file that `save` or CNTK 2.7 wrote, or its bytes. The first bytes decide which.
            device: accepted for compatibility. Networks move the tensors.
            format: `ModelFormat.ONNX` for an ONNX file.

        Raises:
            StateError: the file is missing, damaged or of another format, or the class of a user's function is in a
                module that is not imported.
            CompatError: an operation that feedline does not have, named in the error, or a model of CNTK's first
                version.
            ModuleNotFoundError: the package of the extra ``cntk`` or ``onnx`` is not installed.
        """
        if isinstance(model, (bytes, bytearray)):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "model")
                path.write_bytes(model)
                return Function.of(*_files.load(path, _format(format)))
        return Function.of(*_files.load(model, _format(format)))

    @staticmethod
    def register_udf_deserialize_callback(op_name: str, callback: Callable[..., Any]) -> None:
        """Make a function create a user's function when a file is loaded, instead of `UserFunction.deserialize`.

        Args:
            op_name: name of the kind of operation, see `UserFunction.op_name`.
            callback: function ``callback(inputs, name, state)`` that returns a `UserFunction`.

        Raises:
            ValueError: the name has a function already.
        """
        registered_operation("register_factory")(op_name, callback)

    def serialize(self) -> Any:
        """Return what a file has of a user's function: its class, module, names and state.

        Raises:
            CompatError: another function.
        """
        user = registered_operation("user_of")(self._roots[0])
        if user is None:
            raise CompatError(f"expected a user's function, got {self.op_name}: use save")
        return registered_operation("describe_user")(user)

    def save_model(self, filename: str) -> None:
        """Deprecated alias of `save`."""
        self.save(filename)

    def restore_model(self, filename: str) -> None:
        """Deprecated alias of `restore`."""
        self.restore(filename)


def _format(format: Any) -> str | None:
    """Return the name of a format, from the format or its number in CNTK.

    Raises:
        ValueError: there is no such format.
    """
    if format is None:
        return None
    try:
        return (format if isinstance(format, ModelFormat) else ModelFormat(format)).name
    except ValueError:
        raise ValueError(f"expected ModelFormat.CNTKv2, ModelFormat.ONNX or no format, got {format!r}") from None


def _copied(node: Node, inputs: tuple[Node, ...]) -> Node:
    """Return a node of a copied graph. A user's function is copied by its `clone`."""
    if node.op == "user":
        user = node.attributes["user"].clone([variable_of(child) for child in inputs])
        return user._roots[0].inputs[0]  # type: ignore[no-any-return]
    if node.op == "user_output":
        return inputs[0].attributes["user"]._roots[node.attributes["index"]]  # type: ignore[no-any-return]
    return remade(node, inputs)


def _is_copied(node: Node, replacement: Node, inputs: Sequence[Node]) -> bool:
    """Return whether a replacement in a copy is computed from the copy: from its inputs, or from what it replaces.

    A replacement for an input may be computed from that input, which stays.
    """
    if replacement.is_leaf:
        return False
    below = topological([replacement])
    return not node.is_leaf if node in below else any(leaf in below for leaf in inputs)


def _check_shapes(changes: Mapping[Node, Node]) -> None:
    """Check that operands have the samples of the inputs that they replace, which may be along further leading axes.

    Raises:
        TypeError: samples of another shape.
    """
    for node, operand in changes.items():
        shape, dims = node.type.shape, operand.type.shape
        if node.op != "input" or shape is None or dims is None or not is_fixed(dims):
            continue
        if not fits(dims[max(0, len(dims) - len(shape)) :], shape):
            raise TypeError(
                f"{node.label}: expected an operand of shape {shape}, got {dims} of {operand.label}; create the "
                "function for this shape, or with a placeholder"
            )


def operand_of(node: Node) -> Any:
    """Return the variable of a leaf, or the function of any other node, whose inputs are its operands."""
    if node.is_leaf:
        return variable_of(node)
    function = Function.of([node])
    function._alone = True
    return function


def operands_in(roots: Sequence[Node], nodes: Sequence[Node]) -> list[Any]:
    """Return `operand_of` each of the nodes below roots. Nodes inside recurrences can be evaluated."""
    remember(roots, nodes)
    return [operand_of(node) for node in nodes]


def _nodes_with_name(nodes: Iterable[Node], name: str) -> list[Node]:
    """Return the parameters and constants of a name, or else other nodes, without the inner node of a block."""
    matches = [node for node in nodes if has_name(node, name)]
    inside = {node.inputs[0] for node in matches if "block" in node.attributes}
    matches = [node for node in matches if node not in inside]
    return [node for node in matches if node.weights is not None] or matches
