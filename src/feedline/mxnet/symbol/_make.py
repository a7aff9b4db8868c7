"""Construction of symbols: the functions that scripts call, one for each operator and alias.

An omitted input becomes a new variable named after the node. As in MXNet, it has the node's settings as attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from feedline.mxnet.attribute import AttrScope
from feedline.mxnet.base import MXNetError
from feedline.mxnet.name import NameManager
from feedline.mxnet.symbol._node import HIDDEN, Entry, Node, as_state
from feedline.mxnet.symbol._operator import CALLED, CONTRIB, Operator
from feedline.mxnet.symbol._parameters import REQUIRED, to_text

if TYPE_CHECKING:
    from feedline.mxnet.symbol._symbol import Symbol


def apply(called: str, inputs: Sequence[Symbol | None], settings: Mapping[str, Any], **options: Any) -> Symbol:
    """Return a symbol that applies an operator.

    Args:
        called: any name of the operator, from which automatic names are derived.
        inputs: inputs in the operator's order. None means a new variable.
        settings: settings by name.
        options: ``name`` and ``attr``.

    Raises:
        MXNetError: settings or a number of inputs that the operator does not take.
    """
    from feedline.mxnet.symbol._symbol import Symbol

    operator = CALLED[called]
    name = NameManager.current().get(options.get("name"), called.removeprefix(CONTRIB).lower())
    attributes = AttrScope.current().get(options.get("attr"))
    attributes.update({key: to_text(value) for key, value in settings.items()})
    if operator.variadic:
        attributes.setdefault("num_args", str(len(inputs)))
    node = Node(operator, name, attributes)
    input_names = node.input_names
    if len(inputs) > len(input_names):
        raise MXNetError(f"{called} `{name}`: expected inputs {', '.join(input_names) or 'none'}, got {len(inputs)}")
    entries = []
    for i, slot in enumerate(input_names):
        symbol = inputs[i] if i < len(inputs) else None
        if symbol is None:
            entry = Entry(Node(None, f"{name}_{slot}", node.attributes))
        else:
            if len(symbol.entries) != 1:
                raise MXNetError(
                    f"{called} `{name}`: expected one output for {slot}, got {len(symbol.entries)}: "
                    f"{', '.join(symbol.list_outputs())}; select one by its index"
                )
            entry = symbol.entries[0]
        if entry.node.operator is None:
            if slot in operator.first:
                entry.node.attributes.setdefault("__init__", operator.first[slot])
            if slot in operator.states:
                entry = as_state(entry)
        elif slot in operator.states:
            raise MXNetError(f"{called} `{name}`: expected a variable for the state {slot}, got `{entry.node.name}`")
        entries.append(entry)
    node.inputs = tuple(entries)
    return Symbol(tuple(Entry(node, i) for i in range(node.visible)))


def function(called: str) -> Callable[..., Symbol]:
    """Return the function ``mx.sym.<called>``."""
    operator = CALLED[called]

    def make(*args: Any, name: str | None = None, attr: Mapping[str, str] | None = None, **kwargs: Any) -> Symbol:
        inputs, settings = arrange(operator, called, args, kwargs, _symbol_class())
        return apply(called, inputs, settings, name=name, attr=attr)

    make.__name__ = make.__qualname__ = called
    make.__doc__ = _describe(operator, called)
    return make


def _symbol_class() -> type[Any]:
    from feedline.mxnet.symbol._symbol import Symbol

    return Symbol


def arrange(
    operator: Operator, called: str, args: Sequence[Any], kwargs: dict[str, Any], kind: type[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Split arguments into inputs, which are of the class ``kind`` and come first, and settings, in their order."""
    settings = {key: value for key, value in kwargs.items() if not isinstance(value, kind)}
    named = {key: value for key, value in kwargs.items() if isinstance(value, kind)}
    if operator.variadic:
        several = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        if named:
            several = [*several, *(named[key] for key in sorted(named, key=lambda key: (len(key), key)))]
        return [_expect(called, "input", x, kind) for x in several], settings
    names = _slots(operator, settings)
    inputs: dict[str, Any] = {}
    values = list(args)
    for slot in names:
        if values and (values[0] is None or isinstance(values[0], kind)):
            inputs[slot] = values.pop(0)
        elif slot in settings and settings[slot] is None:
            del settings[slot]
        else:
            break
    free = [key for key in operator.parameters if key != "num_args"]
    if len(values) > len(free):
        raise TypeError(f"{called}: expected at most {len(names)} inputs and {len(free)} settings, got {len(args)}")
    for key, value in zip(free, values, strict=False):
        if isinstance(value, kind) or key in settings:
            raise TypeError(f"{called}: expected {key} once, as a setting, got {value!r} as well")
        settings[key] = value
    for key, symbol in named.items():
        if key not in names or key in inputs:
            raise TypeError(f"{called}: expected {kind.__name__}s for {', '.join(names)}, each once, got one for {key}")
        inputs[key] = symbol
    for key in [key for key in settings if key in names]:
        if settings[key] is not None:
            raise TypeError(f"{called}: expected {_a(kind)} for {key}, got {type(settings[key]).__name__}")
        del settings[key]
    return [inputs.get(slot) for slot in names], settings


def _slots(operator: Operator, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the inputs under these settings."""
    if not callable(operator.inputs):
        return operator.inputs
    texts = {key: to_text(value) for key, value in settings.items() if key in operator.parameters}
    probe = SimpleNamespace()
    for key, parameter in operator.parameters.items():
        value = parameter.default
        if key in texts:
            try:
                value = parameter.kind(texts[key])
            except ValueError:
                value = None  # refused when the node is created
        setattr(probe, key, None if value is REQUIRED else value)
    return operator.inputs(probe)


def _expect(called: str, slot: str, value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{called}: expected {_a(kind)} for {slot}, got {type(value).__name__}")
    return value


def _a(kind: type[Any]) -> str:
    return f"a{'n' if kind.__name__[0] in 'AEINO' else ''} {kind.__name__}"


def _describe(operator: Operator, called: str) -> str:
    below = "any number of symbols" if operator.variadic else "inputs and settings"
    settings = ", ".join(operator.parameters) or "none"
    return f"`{operator.name}` of MXNet, called {called}: {below}. Settings: {settings}. Returns a Symbol."


FUNCTIONS: dict[str, Callable[..., Symbol]] = {name: function(name) for name in CALLED}
assert not set(HIDDEN) & {key for operator in CALLED.values() for key in operator.parameters}
