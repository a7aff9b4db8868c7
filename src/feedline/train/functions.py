"""Checks of the functions that a trainer calls: model, loss, metric and forward. Errors show a correct call."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from feedline.data import Minibatch
from feedline.train.learner import Learner


def check_functions(model: Any, loss: Any, metric: Any, forward: Any) -> None:
    """Check the first arguments of a `Trainer`.

    Raises:
        TypeError: one has the wrong type, takes other arguments, or is a function of torch, which takes tensors.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module as model, got {_kind(model)}")
    _check("loss", loss, "output, minibatch")
    if metric is not None:
        _check("metric", metric, "output, minibatch")
    if forward is not None:
        _check("forward", forward, "model, minibatch")


def _check(name: str, function: Any, arguments: str) -> None:
    expectation = f"expected {name} to be a function {name}({arguments})"
    if isinstance(function, (Learner, torch.optim.Optimizer)) or not callable(function):
        several = isinstance(function, (list, tuple)) and any(isinstance(item, Learner) for item in function)
        hint = "; pass learners=..." if several or isinstance(function, Learner) else ""
        raise TypeError(f"{expectation}, got {_kind(function)}{hint}")
    module = (function if inspect.isroutine(function) else type(function)).__module__ or ""
    if name != "forward" and (module == "torch" or module.startswith(("torch.nn", "torch._C"))):
        raise TypeError(
            f"{expectation}, got torch's {_name(function)}, which takes tensors; write "
            f'{name}=lambda output, minibatch: cross_entropy(output, minibatch["y"].torch(), reduction="none")'
        )
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise TypeError(f"{expectation}, got {_name(function)}{inspect.signature(function)}") from None
    except ValueError:
        pass  # a compiled function without a signature


def call_model(model: torch.nn.Module, minibatch: Minibatch) -> Any:
    """Return ``model(minibatch)``, which is the output if no forward function is given.

    Raises:
        TypeError: the model does not take a minibatch.
    """
    try:
        return model(minibatch)
    except (TypeError, AttributeError) as error:
        stream = next(iter(minibatch), "x") if isinstance(minibatch, Minibatch) else "x"
        raise TypeError(
            f"expected a model that takes a minibatch, as forward= is not given; {type(model).__name__} raised "
            f"{type(error).__name__}: {error}\n  if it takes tensors, write "
            f"forward=lambda model, minibatch: model(minibatch[{stream!r}].torch())"
        ) from error


def _kind(value: Any) -> str:
    return value.__name__ if inspect.isroutine(value) else type(value).__name__


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
