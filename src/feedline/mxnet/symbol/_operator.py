"""The table of MXNet's operators: inputs, settings, and the function of torch tensors that runs each.

There is one `Operator` for each name in MXNet's files; the names that scripts call are its aliases. The shapes of its
outputs follow from running it on tensors without data, see `_infer`, so a function refuses whatever MXNet would refuse.
Only an operator whose outputs or other inputs tell the shape of an input (data tells weights) has a rule for that.

Shapes have the batch in front: ``None`` is an unknown shape, 0 an unknown length. Rules write what they find into a
`Site`, and run again when more is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from feedline.mxnet.base import MXNetError
from feedline.mxnet.symbol._parameters import Parameter

Shape = tuple[int, ...]
LONGEST = 1 << 63
# Before names of operators that scripts find in `mxnet.symbol.contrib`.
CONTRIB = "_contrib_"


class Site:
    """Shapes around one node, as far as they are known.

    Attributes:
        p: the settings of the node.
        name: the name of the node, for messages.
        ins: the shapes of its inputs.
        outs: the shapes of its outputs.
    """

    def __init__(self, p: Any, name: str, ins: Sequence[Shape | None], outs: Sequence[Shape | None]) -> None:
        self.p, self.name, self.ins, self.outs = p, name, list(ins), list(outs)

    def full(self, i: int = 0) -> Shape | None:
        """Return the shape of an input, or None unless every length is known."""
        shape = self.ins[i]
        return shape if shape is not None and 0 not in shape else None

    def put_in(self, i: int, shape: Shape) -> None:
        """Record the shape that input ``i`` must have."""
        self.ins[i] = self._merged(self.ins[i], shape, f"input {i}")

    def put_out(self, shape: Shape, i: int = 0) -> None:
        """Record the shape of output ``i``."""
        self.outs[i] = self._merged(self.outs[i], shape, f"output {i}")

    def _merged(self, old: Shape | None, new: Shape, where: str) -> Shape:
        if any(not 0 <= length < LONGEST for length in new):
            self.refuse(f"expected lengths from 0 at {where}, inferred shape={_shown(new)}")
        if old is None:
            return tuple(new)
        if len(old) != len(new) or any(a != b and a and b for a, b in zip(old, new, strict=True)):
            self.refuse(f"Shape inconsistent at {where}, Provided = {_shown(old)}, inferred shape={_shown(new)}")
        return tuple(a or b for a, b in zip(old, new, strict=True))

    def refuse(self, what: str) -> NoReturn:
        """Raise MXNetError that names the node."""
        raise MXNetError(f"Error in operator {self.name}: {what}")


def _shown(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"


def nothing(site: Site) -> None:
    """Tell nothing: no input's shape follows from those of the others."""


def alike(site: Site) -> None:
    """All inputs have one shape."""
    for shape in site.ins:
        if shape is not None:
            for i in range(len(site.ins)):
                site.put_in(i, shape)


def same(site: Site) -> None:
    """All inputs, and the output, have one shape."""
    for shape in [*site.ins, site.outs[0]]:
        if shape is not None:
            site.put_out(shape)
            for i in range(len(site.ins)):
                site.put_in(i, shape)


def axis_of(axis: int, rank: int) -> int:
    """An axis, counted from the first.

    Raises:
        ValueError: there is no such axis.
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


def numbered(count: int) -> Names:
    """Names of so many inputs of one kind."""
    return tuple(f"arg{i}" for i in range(count))


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An operator of MXNet.

    Attributes:
        name: in files.
        inputs: names of its inputs, or a function of the settings; ``"*"`` alone: as many as are given. What takes
            any number of inputs has ``num_args`` among its settings.
        run: ``run(p, training, *tensors)`` returns a tensor, or a tuple of them.
        shape: the rule for shapes that do not flow forwards, see the module.
        parameters: its settings.
        states: inputs that change in training and have no gradient.
        weights: inputs that hold parameters.
        labels: inputs with targets.
        free: inputs with an element type of their own, or a function of the settings.
        wide: inputs that are float32 where the others are float16, and of their type otherwise.
        outputs: number of visible outputs, or a function of the settings.
        hidden: further outputs that files count and nobody sees.
        called: what outputs are called after the node, or a function of the output's number; without it ``output``,
            with a number where there are several, hidden ones included.
        dtype: element type of the outputs, if the settings tell it.
        head: it makes its own gradient and takes none from above.
        first: initial values for variables among the inputs, in MXNet's notation.
        aliases: what scripts call it.
    """

    name: str
    inputs: Names | Callable[[Any], Names]
    run: Callable[..., Any]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    shape: Callable[[Site], None] = nothing
    states: Names = ()
    weights: Names = ()
    labels: Names = ()
    free: Names | Callable[[Any], Names] = ()
    wide: Names = ()
    outputs: int | Callable[[Any], int] = 1
    hidden: int | Callable[[Any], int] = 0
    called: Names | Callable[[int], str] = ()
    dtype: Callable[[Any], str | None] = lambda p: None
    head: bool = False
    first: Mapping[str, str] = field(default_factory=dict)
    aliases: Names = ()

    def output_name(self, p: Any, index: int) -> str:
        """What an output is called after the node, a visible or a hidden one. O(1): there may be many of them."""
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
        """Names of the inputs under these settings."""
        if callable(self.inputs):
            return self.inputs(p)
        return numbered(p.num_args) if self.variadic else self.inputs

    def free_names(self, p: Any) -> Names:
        """Names of the inputs whose element type is their own."""
        return self.free(p) if callable(self.free) else self.free

    def count(self, p: Any) -> int:
        """Number of visible outputs."""
        return self.outputs(p) if callable(self.outputs) else self.outputs

    def count_hidden(self, p: Any) -> int:
        """Number of hidden outputs."""
        return self.hidden(p) if callable(self.hidden) else self.hidden


OPERATORS: dict[str, Operator] = {}
CALLED: dict[str, Operator] = {}


def define(
    names: str,
    inputs: str | Callable[[Any], Names],
    run: Callable[..., Any],
    parameters: Mapping[str, Parameter] | None = None,
    **settings: Any,
) -> None:
    """Add an operator.

    Args:
        names: that in files, and its aliases, parted by blanks.
        inputs: names parted by blanks, ``*``, or a function of the settings.
        run: see `Operator`, as the rest.
        parameters: see `Operator`.
        settings: further fields of `Operator`; names parted by blanks.
    """
    name, *aliases = names.split()
    for key in ("states", "weights", "labels", "free", "wide", "called"):
        if isinstance(settings.get(key), str):
            settings[key] = tuple(settings[key].split())
    below = tuple(inputs.split()) if isinstance(inputs, str) else inputs
    operator = Operator(name, below, run, parameters or {}, aliases=tuple(aliases), **settings)
    for called in (name, *aliases):
        assert called not in CALLED, called
        CALLED[called] = operator
    OPERATORS[name] = operator
