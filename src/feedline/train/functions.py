"""The functions that a trainer calls: checks of model, loss, metric and forward, with what to write instead."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from feedline.data import Minibatch
from feedline.train.learner import Learner


def check_functions(model: Any, loss: Any, metric: Any, forward: Any) -> None:
    """Check the first arguments of a `Trainer`.

    Raises:
        TypeError: one is not what is expected, takes other arguments, or is a function of torch, which takes tensors.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module as model, got {_kind(model)}")
    _check("loss", loss, "output, minibatch")
    if metric is not None:
        _check("metric", metric, "output, minibatch")
    if forward is not None:
        _check("forward", forward, "model, minibatch")


def _check(name: str, given: Any, arguments: str) -> None:
    wanted = f"expected {name} to be a function {name}({arguments})"
    if isinstance(given, (Learner, torch.optim.Optimizer)) or not callable(given):
        several = isinstance(given, (list, tuple)) and any(isinstance(one, Learner) for one in given)
        hint = "; pass learners=..." if several or isinstance(given, Learner) else ""
        raise TypeError(f"{wanted}, got {_kind(given)}{hint}")
    module = (given if inspect.isroutine(given) else type(given)).__module__ or ""
    if name != "forward" and (module == "torch" or module.startswith(("torch.nn", "torch._C"))):
        raise TypeError(
            f"{wanted}, got torch's {_name(given)}, which takes tensors; write "
            f'{name}=lambda output, minibatch: cross_entropy(output, minibatch["y"].torch(), reduction="none")'
        )
    try:
        inspect.signature(given).bind(None, None)
    except TypeError:
        raise TypeError(f"{wanted}, got {_name(given)}{inspect.signature(given)}") from None
    except ValueError:
        pass  # a compiled function without a signature


def call_model(model: torch.nn.Module, minibatch: Minibatch) -> Any:
    """Return ``model(minibatch)``, the output where no forward function is given.

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


def _kind(thing: Any) -> str:
    return thing.__name__ if inspect.isroutine(thing) else type(thing).__name__


def _name(given: Any) -> str:
    return getattr(given, "__name__", type(given).__name__)
