"""`Symbol`: outputs of a graph, with MXNet's behaviour.

A symbol is a tuple of entries. Every query is answered from the nodes below them, which it shares with the symbols from
which it was composed. A query takes time linear in the nodes. Nothing is computed before the symbol is bound.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedline.mxnet.base import MXNetError, NotImplementedForSymbol
from feedline.mxnet.symbol import _node
from feedline.mxnet.symbol._infer import TYPES, Inferred, by_variable, infer_shapes, infer_types, lengths, shown
from feedline.mxnet.symbol._make import FUNCTIONS, apply
from feedline.mxnet.symbol._node import HIDDEN, Entry, Node, topological, variables

Shape = tuple[int, ...]
_SHOWN = 10  # maximum number of unknown arguments in an error


def _binary(both: str, number: str) -> Callable[[Symbol, Any], Any]:
    """Return a method for an operand that is another symbol, or a number."""

    def method(self: Symbol, other: Any) -> Any:
        if isinstance(other, Symbol):
            return apply(both, [self, other], {})
        if isinstance(other, (int, float, np.number)):
            return apply(number, [self], {"scalar": other})
        return NotImplemented

    return method


class Symbol:
    """Outputs of a graph. Operators are methods too: ``x.reshape((2, -1))`` is ``mx.sym.reshape(x, (2, -1))``.

    Attributes:
        entries: outputs.
    """

    __hash__ = object.__hash__

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)

    # ---- properties -----------------------------------------------------------------------------------------

    @property
    def name(self) -> str | None:
        """Name of its node, None for a group."""
        nodes = {entry.node for entry in self.entries}
        return next(iter(nodes)).name if len(nodes) == 1 else None

    def __repr__(self) -> str:
        name = self.name
        return f"<{type(self).__name__} {name or 'group [' + ', '.join(e.node.name for e in self.entries) + ']'}>"

    def __len__(self) -> int:
        return len(self.entries)

    def __bool__(self) -> bool:
        raise NotImplementedForSymbol("a Symbol has no truth value: nothing is computed before it is bound")

    def __iter__(self) -> Iterator[Symbol]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int | str | slice) -> Symbol:
        """Return an output by index or name, or several by a slice.

        Raises:
            ValueError: no output of that name, or several.
            IndexError: no output of that index.
        """
        if isinstance(index, str):
            matches = [i for i, name in enumerate(self.list_outputs()) if name == index]
            if len(matches) != 1:
                raise ValueError(
                    f"There are {len(matches)} outputs with name {index!r}, expected one of {self.list_outputs()}"
                )
            index = matches[0]
        if isinstance(index, slice):
            return Symbol(self.entries[index])
        if not 0 <= index < len(self.entries):
            raise IndexError(f"expected an output from 0 to {len(self.entries) - 1}, got {index}")
        return Symbol((self.entries[index],))

    def list_arguments(self) -> list[str]:
        """Return the names of all variables but states, in topological order."""
        return [node.name for node in variables(self.entries)[0]]

    def list_auxiliary_states(self) -> list[str]:
        """Return the names of states: variables that operators change in training."""
        return [node.name for node in variables(self.entries)[1]]

    def list_inputs(self) -> list[str]:
        """Return the names of all variables."""
        return [node.name for node in topological(self.entries) if node.operator is None]

    def list_outputs(self) -> list[str]:
        """Return the names of the outputs."""
        return [entry.node.output_name(entry.output) for entry in self.entries]

    def get_internals(self) -> Symbol:
        """Return all outputs of all nodes of the graph, as a group."""
        nodes = topological(self.entries)
        versions = {e.node: e.version for node in nodes for e in node.inputs}
        return Symbol([Entry(n, i, versions.get(n, 0)) for n in nodes for i in range(n.visible)])

    def get_children(self) -> Symbol | None:
        """Return the inputs of its nodes, or None for variables."""
        below = [entry for node in dict.fromkeys(e.node for e in self.entries) for entry in node.inputs]
        return Symbol(below) if below else None

    # ---- attributes -----------------------------------------------------------------------------------------

    def attr(self, key: str) -> str | None:
        """Return an attribute of its node as text, or None."""
        return self.list_attr().get(key)

    def list_attr(self) -> dict[str, str]:
        """Return all attributes of its node."""
        return _show(self._only().attributes)

    def attr_dict(self) -> dict[str, dict[str, str]]:
        """Return the attributes of all nodes that have any, by name."""
        return {n.name: _show(n.attributes) for n in topological(self.entries) if n.attributes}

    def _set_attr(self, **kwargs: str) -> None:
        for key, value in kwargs.items():
            if not isinstance(value, str):
                raise ValueError(f"Set Attr only accepts string values, got {value!r} for {key}")
        self._only().attributes.update({f"__{k}__" if k in HIDDEN else k: v for k, v in kwargs.items()})

    def _only(self) -> Node:
        nodes = {entry.node for entry in self.entries}
        if len(nodes) != 1:
            raise MXNetError(f"expected a symbol of one node, got {self!r}: select one of its outputs")
        return next(iter(nodes))

    # ---- composition ----------------------------------------------------------------------------------------

    def __call__(self, *args: Symbol, name: str | None = None, **kwargs: Symbol) -> Symbol:
        """Return a copy with variables replaced, by position in the order of `list_inputs`, or by name.

        Raises:
            TypeError: both ways at once, or something other than a Symbol with one output.
            ValueError: no variable of that name.
        """
        if args and kwargs:
            raise TypeError("compose only accept input Symbols either as positional or keyword arguments, not both")
        leaves = [node for node in topological(self.entries) if node.operator is None]
        names = [node.name for node in leaves]
        replacements = dict(zip(names, args, strict=False)) if args else kwargs
        if len(args) > len(leaves):
            raise TypeError(f"expected at most {len(leaves)} symbols, got {len(args)}")
        replace = {}
        for key, value in replacements.items():
            if not isinstance(value, Symbol) or len(value.entries) != 1:
                raise TypeError(f"expected a Symbol of one output for {key}, got {value!r}")
            if key not in names:
                raise ValueError(f"expected a variable among {', '.join(names)}, got {key!r}")
            replace.update({node: value.entries[0] for node in leaves if node.name == key})
        copy = Symbol(_node.rebuilt(self.entries, replace))
        if name is not None:
            copy._only().name = name
        return copy

    def __copy__(self) -> Symbol:
        return Symbol(_node.rebuilt(self.entries, {}))

    def __deepcopy__(self, memo: Any) -> Symbol:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_json, (self.tojson(),)

    # ---- shapes and types -----------------------------------------------------------------------------------

    def infer_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Infer the shapes of arguments, outputs and states from some arguments' shapes. A length of 0 is unknown.

        Returns:
            Three lists of tuples, or three times None, with a warning, if a shape stays unknown.

        Raises:
            MXNetError: a name that is not an argument, or contradictory shapes.
        """
        inferred = self._infer(args, kwargs)
        arguments, states = variables(self.entries)
        if all(map(inferred.knows, (*arguments, *states))) and all(map(inferred.knows, self.entries)):
            return self._shapes(inferred)
        unknown = [f"{node.name}: {shown(inferred.shape(node))}" for node in arguments if not inferred.knows(node)]
        listed = unknown[:_SHOWN] + ["..."] * (len(unknown) > _SHOWN)
        warnings.warn(
            "Cannot decide shape for the following arguments (0s in shape means unknown dimensions). "
            "Consider providing them as input:\n\t" + "\n\t".join(listed),
            stacklevel=2,
        )
        return None, None, None

    def infer_shape_partial(self, *args: Any, **kwargs: Any) -> Any:
        """Infer shapes as `infer_shape`, with ``()`` for unknown shapes and 0 for unknown lengths.

        Under `mxnet.util.np_shape` these are None and -1.
        """
        return self._shapes(self._infer(args, kwargs))

    def _infer(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inferred:
        return infer_shapes(self.entries, by_variable(self.entries, args, kwargs, lengths))

    def _shapes(self, inferred: Inferred) -> tuple[list[Shape | None], ...]:
        arguments, states = variables(self.entries)
        return tuple([shown(inferred.shape(item)) for item in several] for several in (arguments, self.entries, states))

    def infer_type(self, *args: Any, **kwargs: Any) -> Any:
        """Infer the NumPy types of arguments, outputs and states from some arguments' types.

        Returns:
            Three lists, or three times None if a type stays unknown.

        Raises:
            MXNetError: a name that is not an argument, or contradictory types.
        """
        types = self.infer_type_partial(*args, **kwargs)
        return (None, None, None) if any(None in several for several in types) else types

    def infer_type_partial(self, *args: Any, **kwargs: Any) -> Any:
        """Infer types as `infer_type`, with None for unknown types."""
        types = infer_types(self.entries, by_variable(self.entries, args, kwargs, lambda dtype: np.dtype(dtype).name))
        arguments, states = variables(self.entries)
        names = [[types.type(item) for item in several] for several in (arguments, self.entries, states)]
        return tuple([None if name is None else np.dtype(name).type for name in several] for several in names)

    # ---- files ----------------------------------------------------------------------------------------------

    def tojson(self) -> str:
        """Return the graph as MXNet's JSON text."""
        return _node.to_json(self.entries)

    def save(self, fname: str) -> None:
        """Write `tojson` to a file.

        Raises:
            TypeError: the name is not text.
        """
        if not isinstance(fname, str):
            raise TypeError(f"fname need to be string, got {type(fname).__name__}")
        Path(fname).write_text(self.tojson(), encoding="utf-8")

    # ---- execution ------------------------------------------------------------------------------------------

    def bind(
        self,
        ctx: Any,
        args: Any,
        args_grad: Any = None,
        grad_req: Any = "write",
        aux_states: Any = None,
        group2ctx: Any = None,
        shared_exec: Any = None,
    ) -> Any:
        """Return an executor over these arrays.

        Args:
            ctx: Context to run on.
            args: list of NDArrays in the order of `list_arguments`, or dict by name.
            args_grad: arrays for gradients, likewise. Arguments without an array get no gradient.
            grad_req: "write", "add" or "null" for all arguments, or a list, or a dict by name.
            aux_states: arrays of the states.
            group2ctx: contexts of arrays that `simple_bind` creates, by the ``ctx_group`` of their variables. Operators
                run on ``ctx``.
            shared_exec: accepted without effect, as torch manages memory.

        Raises:
            MXNetError: missing arrays, or shapes that do not fit.
        """
        from feedline.mxnet.symbol._executor import bind

        return bind(self, ctx, args, args_grad, grad_req, aux_states)

    def simple_bind(
        self,
        ctx: Any,
        grad_req: Any = "write",
        type_dict: Mapping[str, Any] | None = None,
        stype_dict: Any = None,
        group2ctx: Any = None,
        shared_arg_names: Any = None,
        shared_exec: Any = None,
        shared_buffer: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return an executor over new arrays of zeros, whose shapes are inferred from ``name=shape``. See `bind`.

        Raises:
            MXNetError: contradictory or insufficient shapes.
        """
        from feedline.mxnet.symbol._executor import simple_bind

        return simple_bind(self, ctx, grad_req, type_dict or {}, group2ctx or {}, kwargs)

    def eval(self, ctx: Any = None, **kwargs: Any) -> Any:
        """Return the outputs for these arguments, as a list of NDArrays."""
        from feedline.mxnet.context import current_context

        arguments, states = variables(self.entries)
        aux = {node.name: kwargs[node.name] for node in states if node.name in kwargs}
        args = {node.name: kwargs[node.name] for node in arguments if node.name in kwargs}
        return self.bind(ctx or current_context(), args, grad_req="null", aux_states=aux).forward()

    # ---- arithmetic -----------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in FUNCTIONS:
            raise AttributeError(f"Symbol has no attribute {name!r}")
        return functools.partial(FUNCTIONS[name], self)

    def astype(self, dtype: Any) -> Symbol:
        """Return the symbol cast to another type."""
        return apply("cast", [self], {"dtype": dtype})

    def __neg__(self) -> Symbol:
        return apply("_MulScalar", [self], {"scalar": -1.0})

    def __abs__(self) -> Symbol:
        return apply("abs", [self], {})

    __add__ = __radd__ = _binary("_Plus", "_PlusScalar")
    __mul__ = __rmul__ = _binary("_Mul", "_MulScalar")
    __sub__, __rsub__ = _binary("_Minus", "_MinusScalar"), _binary("_Minus", "_RMinusScalar")
    __truediv__, __rtruediv__ = _binary("_Div", "_DivScalar"), _binary("_Div", "_RDivScalar")
    __mod__, __rmod__ = _binary("_Mod", "_ModScalar"), _binary("_Mod", "_RModScalar")
    __pow__, __rpow__ = _binary("_Power", "_PowerScalar"), _binary("_Power", "_RPowerScalar")
    __eq__, __ne__ = _binary("_equal", "_equal_scalar"), _binary("_not_equal", "_not_equal_scalar")
    __gt__, __ge__ = _binary("_greater", "_greater_scalar"), _binary("_greater_equal", "_greater_equal_scalar")
    __lt__, __le__ = _binary("_lesser", "_lesser_scalar"), _binary("_lesser_equal", "_lesser_equal_scalar")


def _show(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return attributes. Attributes that files write with underscores are listed under both names."""
    plain = {key.strip("_"): value for key, value in attributes.items() if key.strip("_") in HIDDEN}
    return {**attributes, **plain}


def _from_json(text: str) -> Symbol:
    return Symbol(_node.from_json(text))


def variable(name: str, attributes: Mapping[str, str]) -> Symbol:
    """Return a symbol of one variable."""
    return Symbol((Entry(Node(None, name, attributes)),))


def type_number(dtype: Any) -> str:
    """Return MXNet's number of an element type.

    Raises:
        TypeError: a type without a number.
    """
    name = np.dtype(dtype).name
    if name not in TYPES:
        raise TypeError(f"expected an element type of {', '.join(TYPES)}, got {name}")
    return str(TYPES.index(name))
