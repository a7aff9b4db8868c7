"""`cntk.default_options`: override defaults of layers within a with-block."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from feedline.cntk._names import names_of
from feedline.cntk._settings import take_plain_settings

__all__, __getattr__ = names_of(__name__)


_Factory = TypeVar("_Factory", bound=Callable[..., Any])


class _Default:
    """A default that a ``with`` block may override."""

    def __init__(self, value: Any) -> None:
        self.value = value


# Factory (None means all) and options of each block, the innermost last.
_blocks: list[tuple[Any, dict[str, Any]]] = []


def default_override_or(value: Any) -> Any:
    """Mark a default in a signature that is ``value`` unless a block overrides it."""
    return _Default(value)


def is_default_override(value: Any) -> bool:
    """Return whether a value is a marked default, which means that no argument was passed."""
    return isinstance(value, _Default)


@contextmanager
def default_options(**options: Any) -> Iterator[None]:
    """Override options of all layers constructed in the block that have these options."""
    with default_options_for(None, **options):
        yield


@contextmanager
def default_options_for(functions: Any, **options: Any) -> Iterator[None]:
    """Override options of the layers that these factories construct in the block."""
    factories = [inspect.unwrap(f) for f in (functions if isinstance(functions, (list, tuple)) else [functions])]
    _blocks.extend((factory, options) for factory in factories)
    try:
        yield
    finally:
        del _blocks[len(_blocks) - len(factories) :]


_options: dict[str, Any] = {}


def get_global_option(key: str, default_value: Any) -> Any:
    """Return the last value of `set_global_option`, or a default."""
    return _options.get(key, default_value)


def set_global_option(key: str, value: Any) -> None:
    """Store an option, without effect."""
    _options[key] = value


def get_default_override(function: Any, **option: Any) -> Any:
    """Return the value of an option: as passed, else from the innermost block, else the default.

    Raises:
        TypeError: not exactly one option, or the function has no such parameter.
        ValueError: neither a Python function nor None.
    """
    if len(option) != 1:
        raise TypeError(f"expected one option, got {len(option)}")
    name, value = next(iter(option.items()))
    if function is not None:
        if not (inspect.isfunction(function) or inspect.isclass(function)):
            raise ValueError(f"expected a Python function or None, got {function!r}")
        if name not in inspect.signature(function).parameters:
            raise TypeError(f"expected a parameter of {function.__name__}, got {name!r}")
    return _resolved(function, name, value)


def _resolved(function: Any, name: str, value: Any) -> Any:
    """Return the value of an option. See `get_default_override`."""
    if not isinstance(value, _Default):
        return value
    for factory, options in reversed(_blocks):
        if factory in (None, inspect.unwrap(function)) and name in options:
            return options[name]
    return value.value


def overridable(factory: _Factory) -> _Factory:
    """Decorate a factory so that its body receives values in place of marked defaults."""
    parameters = inspect.signature(factory).parameters
    marked = {name: p.default for name, p in parameters.items() if is_default_override(p.default)}

    @functools.wraps(factory)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        def resolved(name: str, value: Any) -> Any:
            return _resolved(wrapper, name, value)

        positional = [resolved(name, value) for name, value in zip(parameters, args, strict=False)]
        remaining = {name: default for name, default in marked.items() if name not in list(parameters)[: len(args)]}
        options = {name: resolved(name, value) for name, value in {**remaining, **kwargs}.items()}
        return factory(*positional, *args[len(positional) :], **options)

    return cast(_Factory, wrapper)


take_plain_settings(globals())
