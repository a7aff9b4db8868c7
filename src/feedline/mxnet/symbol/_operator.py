"""The table of MXNet's operators: inputs, settings, and the function of torch tensors that runs each.

There is one `Operator` for each name in MXNet's files, which `define` derives from the signature of the function that
runs it. The names that scripts call are its aliases. The shapes of its outputs follow from running it on tensors
without data, see `_infer`, so a function refuses all inputs that MXNet would refuse. Only an operator in which the
shape of an input follows from outputs or other inputs (such as the weights' from the data's) has a rule for that.

The first axis of shapes is the batch. ``None`` is an unknown shape, 0 an unknown length. Rules record their results in
a `Site`, and run again when more is known.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any, NoReturn, TypeVar

from feedline.mxnet.base import MXNetError
from feedline.mxnet.symbol._parameters import COUNT, REQUIRED, Parameter, Shape, kind_of

LONGEST = 1 << 63
# Prefix of operators that scripts find in `mxnet.symbol.contrib`.
CONTRIB = "_contrib_"


class Site:
    """Shapes around one node, as far as they are known.

    Attributes:
        p: settings of the node.
        name: name of the node, for messages.
        ins: shapes of its inputs.
        outs: shapes of its outputs.
        recorded: indices of the outputs whose shapes were recorded here.
    """

    def __init__(self, p: Any, name: str, ins: Sequence[Shape | None], outs: Sequence[Shape | None]) -> None:
        self.p, self.name, self.ins, self.outs = p, name, list(ins), list(outs)
        self.recorded: set[int] = set()

    def full(self, i: int = 0) -> Shape | None:
        """Return the shape of an input, or None unless every length is known."""
        shape = self.ins[i]
        return shape if shape is not None and 0 not in shape else None

    def put_in(self, i: int, shape: Shape) -> None:
        """Record the shape that input ``i`` must have."""
        self.ins[i] = self._merge(self.ins[i], shape, f"input {i}")

    def put_out(self, shape: Shape, i: int = 0) -> None:
        """Record the shape of output ``i``."""
        self.recorded.add(i)
        self.outs[i] = self._merge(self.outs[i], shape, f"output {i}")

    def _merge(self, old: Shape | None, new: Shape, where: str) -> Shape:
        if any(not 0 <= length < LONGEST for length in new):
            self.refuse(f"expected lengths of at least 0 at {where}, inferred shape={_show(new)}")
        if old is None:
            return tuple(new)
        if len(old) != len(new) or any(a != b and a and b for a, b in zip(old, new, strict=True)):
            self.refuse(f"Shape inconsistent at {where}, Provided = {_show(old)}, inferred shape={_show(new)}")
        return tuple(a or b for a, b in zip(old, new, strict=True))

    def refuse(self, what: str) -> NoReturn:
        """Raise MXNetError that names the node."""
        raise MXNetError(f"Error in operator {self.name}: {what}")


def _show(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"


def nothing(site: Site) -> None:
    """Infer nothing: no input's shape follows from other shapes."""


def alike(site: Site) -> None:
    """Record the same shape for all inputs."""
    for shape in site.ins:
        if shape is not None:
            for i in range(len(site.ins)):
                site.put_in(i, shape)


def same(site: Site) -> None:
    """Record the same shape for all inputs and the output."""
    for shape in [*site.ins, site.outs[0]]:
        if shape is not None:
            site.put_out(shape)
            for i in range(len(site.ins)):
                site.put_in(i, shape)


def from_data(shapes: Callable[[Shape, Any], Sequence[Shape]], complete: bool = False) -> Callable[[Site], None]:
    """Return a rule for inputs whose shapes follow from the first input's.

    Args:
        shapes: function ``shapes(data, p)`` of that shape and the settings. It returns the shapes of the inputs after
            it, including optional ones.
        complete: whether to wait until every length is known.
    """

    def rule(site: Site) -> None:
        data = site.full() if complete else site.ins[0]
        if data is not None and len(site.ins) > 1:
            for i, shape in zip(range(1, len(site.ins)), shapes(data, site.p), strict=False):
                site.put_in(i, shape)

    return rule


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the first.

    Raises:
        ValueError: no such axis.
    """
    if not -rank <= axis < rank:
        raise ValueError(f"expected an axis from {-rank} to {rank - 1}, got {axis}")
    return axis % rank


def check_images(*tensors: Any) -> None:
    """Refuse tensors that are not batches of images.

    Raises:
        ValueError: a tensor does not have four axes.
    """
    for x in tensors:
        if x.dim() != 4:
            raise ValueError(f"expected data (batch, channels, height, width), got {tuple(x.shape)}")


Names = tuple[str, ...]


def numbered_names(count: int) -> Names:
    """Return names for a number of inputs of one kind."""
    return tuple(f"arg{i}" for i in range(count))


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An operator of MXNet.

    Attributes:
        name: name in files.
        function: function that runs it, with inputs as positional arguments and settings as keywords. It returns a
            tensor, or a tuple of them.
        inputs: names of its inputs, or a function of the settings that returns them. ``"*"``: any number of inputs, and
            ``num_args`` is a setting.
        parameters: its settings.
        groups: settings that the function takes together, as an instance of a dataclass, by argument.
        trains: whether the function also takes ``training``.
        shape: rule for shapes that do not flow forwards, see the module.
        states: inputs that change in training and have no gradient.
        weights: inputs that hold parameters.
        labels: inputs with targets, whose element type is independent.
        free: further inputs with an independent element type, or a function of the settings that returns them.
        wide: inputs that are float32 where the other inputs are float16, and of their type otherwise.
        outputs: number of visible outputs, or a function of the settings that returns it.
        hidden: number of further outputs, which only files contain, or such a function.
        called: suffixes of the outputs' names, or a function of an output's index. By default ``output``, with an index
            if there are several, including hidden ones.
        dtype: element type of the outputs, if the settings determine it. By default the setting of that name.
        head: whether it produces its own gradient and ignores incoming ones.
        first: initial values for variables among the inputs, in MXNet's notation.
        aliases: names that scripts call.
    """

    name: str
    function: Callable[..., Any]
    inputs: Names | Callable[[Any], Names]
    parameters: Mapping[str, Parameter]
    groups: Mapping[str, Any]
    trains: bool
    shape: Callable[[Site], None] = nothing
    states: Names = ()
    weights: Names = ()
    labels: Names = ()
    free: Names | Callable[[Any], Names] = ()
    wide: Names = ()
    outputs: int | Callable[[Any], int] = 1
    hidden: int | Callable[[Any], int] = 0
    called: Names | Callable[[int], str] = ()
    dtype: Callable[[Any], str | None] = lambda p: getattr(p, "dtype", None)
    head: bool = False
    first: Mapping[str, str] = field(default_factory=dict)
    aliases: Names = ()

    def bind(self, p: Any, training: bool) -> Callable[..., Any]:
        """Return the function of the inputs under these settings."""
        settings = {key: value for key, value in vars(p).items() if key != "num_args"}
        for key, group in self.groups.items():
            settings[key] = group(**{name: settings.pop(name) for name in group.__dataclass_fields__})
        if self.trains:
            settings["training"] = training
        return functools.partial(self.function, **settings)

    def output_name(self, p: Any, index: int) -> str:
        """Return the suffix of an output's name, visible or hidden. O(1), as there may be many outputs."""
        if callable(self.called):
            return self.called(index)
        if self.called:
            return self.called[index]
        return "output" if self.count(p) + self.count_hidden(p) == 1 else f"output{index}"

    @property
    def variadic(self) -> bool:
        """Whether it takes any number of inputs."""
        return "num_args" in self.parameters

    def input_names(self, p: Any) -> Names:
        """Return the names of the inputs under these settings."""
        if callable(self.inputs):
            return self.inputs(p)
        return numbered_names(p.num_args) if self.variadic else self.inputs

    def free_names(self, p: Any) -> Names:
        """Return the names of the inputs with an independent element type."""
        return (*self.labels, *(self.free(p) if callable(self.free) else self.free))

    def count(self, p: Any) -> int:
        """Return the number of visible outputs."""
        return self.outputs(p) if callable(self.outputs) else self.outputs

    def count_hidden(self, p: Any) -> int:
        """Return the number of hidden outputs."""
        return self.hidden(p) if callable(self.hidden) else self.hidden


OPERATORS: dict[str, Operator] = {}
CALLED: dict[str, Operator] = {}
Function = TypeVar("Function", bound=Callable[..., Any])


def define(
    names: str,
    *,
    inputs: Callable[[Any], Names] | None = None,
    when: Mapping[str, Callable[[Any], object]] | None = None,
    **fields: Any,
) -> Callable[[Function], Function]:
    """Declare the decorated function as an operator.

    Its positional parameters are the inputs, in order. ``*tensors`` takes any number of them, and adds ``num_args`` to
    the settings. Its keyword-only parameters are the settings, with their defaults, parsed from text by type (see
    `kind_of`). The fields of a dataclass are several settings. ``training`` is not a setting, but whether the operator
    runs in training.

    Args:
        names: name in files, and its aliases, separated by blanks.
        inputs: function of the settings that returns names of inputs, instead of the decorated function's.
        when: whether inputs that depend on the settings exist, as functions of the settings by name.
        fields: further fields of `Operator`. Names are separated by blanks.
    """
    for key in ("states", "weights", "labels", "free", "wide", "called"):
        if isinstance(fields.get(key), str):
            fields[key] = tuple(fields[key].split())

    def declare(function: Function) -> Function:
        name, *aliases = names.split()
        slots, parameters, groups, trains = [], {}, {}, False
        for key, declared in inspect.signature(function, eval_str=True).parameters.items():
            if declared.kind is declared.VAR_POSITIONAL:
                slots.append("*")
                parameters["num_args"] = Parameter(COUNT)
            elif declared.kind is not declared.KEYWORD_ONLY:
                slots.append(key)
            elif key == "training":
                trains = True
            elif is_dataclass(group := declared.annotation):
                groups[key] = group
                parts = inspect.signature(group, eval_str=True).parameters  # type: ignore[arg-type]
                parameters.update({part_name: _parameter(part) for part_name, part in parts.items()})
            else:
                parameters[key] = _parameter(declared)
        below = inputs or (_present(slots, when) if when else tuple(slots))
        operator = Operator(name, function, below, parameters, groups, trains, aliases=tuple(aliases), **fields)
        for called in (name, *aliases):
            assert called not in CALLED, called
            CALLED[called] = operator
        OPERATORS[name] = operator
        return function

    return declare


def _parameter(declared: inspect.Parameter) -> Parameter:
    return Parameter(kind_of(declared.annotation), REQUIRED if declared.default is declared.empty else declared.default)


def _present(inputs: Sequence[str], when: Mapping[str, Callable[[Any], object]]) -> Callable[[Any], Names]:
    return lambda p: tuple([name for name in inputs if name not in when or when[name](p)])
