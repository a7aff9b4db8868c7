"""A `torch.nn.Module` as a graph, by the best importer that can read it.

With inputs: `torch.export`, which sees every operation; where it refuses, `torch.fx`, which sees one way through for
all inputs; where that refuses too (the way depends on data), a run with forward hooks, which sees the way of these
inputs. Without inputs: `torch.fx` without shapes, else the tree of modules, without edges. The graph says which, and
why no better one would do. Neither parameters, buffers nor random generators change.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from feedline.graph.graph import Graph
from feedline.graph.importers.torch_fx import from_export, from_fx
from feedline.graph.importers.torch_parts import arguments
from feedline.graph.importers.torch_run import from_run, from_tree

WORDS = 160  # of a refusal, in characters
TALKERS = ("fx.experimental.symbolic_shapes", "export._trace", "_subclasses.fake_tensor")  # loggers of torch


# What tracers and `_quietly` change is the process's: of two at once, the second would put back what the first had set.
_ONE_AT_A_TIME = threading.RLock()


def from_module(model: torch.nn.Module, inputs: Any = None) -> Graph:
    """The graph of a module. Threads take turns.

    Args:
        model: is left as it is.
        inputs: see `feedline.graph.importers.graph_of`.

    Raises:
        TypeError: a scripted or traced module, whose inside only TorchScript sees.
        ValueError: the module cannot be run on the inputs; the cause is its own error.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise TypeError(
            f"expected a module of Python code, got {type(model).__name__} with TorchScript in it: "
            "pass the module that was scripted or traced"
        )
    with _ONE_AT_A_TIME:
        return _read(model, inputs)


def _read(model: torch.nn.Module, inputs: Any) -> Graph:
    notes: list[str] = []
    if inputs is None:
        try:
            with _quietly(), _unchanged(model, runs=False):
                return from_fx(model, None)
        except Exception as error:  # whatever the module's code makes of a tracer
            notes.append(f"torch.fx: {_said(error)}")
        return from_tree(model, (*notes, "the tree of modules, without edges and shapes: pass inputs"))
    args, kwargs = arguments(model, inputs)
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        model = _made(model, args, kwargs)
    for name, read in (("torch.export", from_export), ("torch.fx", from_fx)):
        try:
            with _quietly(), _unchanged(model, runs=read is from_fx):
                graph: Graph = read(model, (args, kwargs), tuple(notes))
            return graph
        except Exception as error:
            notes.append(f"{name}: {_said(error)}")
    with _told(model), _unchanged(model, runs=True), torch.no_grad():
        return from_run(model, args, kwargs, (*notes, "one run on the inputs: other inputs may go other ways"))


def _made(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.nn.Module:
    """A copy of a lazy module, whose parameters a first run has made: the model's own stay to be made."""
    # Uninitialized buffers refuse to be copied.
    lazy: list[Any] = [buffer for buffer in model.buffers() if is_lazy(buffer)]
    fresh = {id(buffer): type(buffer)(device=buffer.device, dtype=buffer.dtype) for buffer in lazy}
    model = copy.deepcopy(model, fresh)
    with _told(model), torch.random.fork_rng(devices=_devices(model)), torch.no_grad():
        model(*args, **kwargs)
    return model


@contextlib.contextmanager
def _told(model: torch.nn.Module) -> Iterator[None]:
    """Says of what a run raises that the inputs do not fit."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"expected inputs that {type(model).__name__} can be run on; it raised {type(error).__name__}: {error}"
        ) from error


def _said(error: Exception) -> str:
    """The first line of what an importer says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return text if len(text) <= WORDS else f"{text[: WORDS - 1]}…"


def _devices(model: torch.nn.Module) -> list[Any]:
    return sorted({p.device for p in model.parameters() if p.device.type == "cuda"}, key=str)


@contextlib.contextmanager
def _unchanged(model: torch.nn.Module, runs: bool) -> Iterator[None]:
    """Puts back what a tracer leaves behind, in buffers, attributes, lists, dicts and random generators.

    If it ``runs`` the module, in parameters too, at the cost of their memory: an embedding with ``max_norm``, for one,
    writes its weights when it is run.
    """
    held_by = (*model.parameters(), *model.buffers()) if runs else model.buffers()
    tensors = {t: t.detach().clone() for t in held_by if not is_lazy(t) and not t.is_meta}
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    # torch.export, for one, leaves its stand-ins for weights in a list that LSTMs keep.
    held = [(v, v.copy()) for _, before in attributes for v in before.values() if isinstance(v, (list, dict))]
    try:
        with torch.random.fork_rng(devices=_devices(model)):
            yield
    finally:
        for module, before in attributes:
            vars(module).clear()
            vars(module).update(before)
        for container, content in held:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)
        with torch.no_grad():
            for tensor, value in tensors.items():
                if _changed(tensor, value):
                    tensor.copy_(value)


def _changed(tensor: Any, before: Any) -> bool:
    """Whether to write it back, which invalidates what autograd has kept of it."""
    dense = tensor.layout is torch.strided and not tensor.is_quantized
    return not dense or not torch.equal(tensor, before)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the warnings and logs of a tracer that refuses: the graph's notes say why."""
    loggers = [logging.getLogger(f"torch.{name}") for name in TALKERS]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        # torch.export prints what it has of a graph that it refuses.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was
