"""Import of a `torch.nn.Module`, by the best importer that can read it.

With inputs, the importers are tried in this order: a dry run, `torch.export`, `torch.fx` and a run. A dry run records
every torch function on tensors without data. `torch.export` also reads modules whose shapes depend on data. `torch.fx`
records one control flow for all inputs. A run records the control flow for these inputs, for modules whose flow depends
on data. Without inputs, `torch.fx` reads the module without shapes. If it fails, the graph is the tree of modules,
without edges. The graph names the importer and the errors of better ones. Parameters, buffers and random generators are
unchanged.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import logging
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from feedline.graph.graph import Graph
from feedline.graph.importers.torch_fx import from_export, from_fx
from feedline.graph.importers.torch_parts import arguments
from feedline.graph.importers.torch_run import from_dry_run, from_run, from_tree

WORDS = 160  # longest excerpt of an error, in characters
NOISY_LOGGERS = ("fx.experimental.symbolic_shapes", "export._trace", "_subclasses.fake_tensor")  # loggers of torch


# Tracers and `_silence` change process-wide state. Concurrent ones would restore each other's changes.
_ONE_AT_A_TIME = threading.RLock()


def from_module(model: torch.nn.Module, inputs: Any = None) -> Graph:
    """Return the graph of a module. Calls from several threads are serialized.

    Args:
        model: module, which is not changed.
        inputs: as for `feedline.graph.importers.graph_of`.

    Raises:
        TypeError: a scripted or traced module, whose content only TorchScript can read.
        ValueError: the module cannot be run on the inputs. Its error is the cause.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise TypeError(
            f"expected a module of Python code, got {type(model).__name__} with TorchScript in it: "
            "pass the module that was scripted or traced"
        )
    with _ONE_AT_A_TIME, _postpone_collection():
        return _read(model, inputs)


def _read(model: torch.nn.Module, inputs: Any) -> Graph:
    notes: list[str] = []
    if inputs is None:
        try:
            with _silence(), _undo_changes(model, runs=False):
                return from_fx(model)
        except Exception as error:  # a module's code may fail in any way when traced
            notes.append(f"torch.fx: {_first_line(error)}")
        notes.append("the tree of modules, without edges and shapes: pass inputs")
        return replace(from_tree(model), notes=tuple(notes))
    args, kwargs = arguments(model, inputs)
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        model = _initialize_copy(model, args, kwargs)
    for name, read in (("a dry run", from_dry_run), ("torch.export", from_export), ("torch.fx", from_fx)):
        try:
            with _silence(), _undo_changes(model, runs=read is from_fx):
                graph: Graph = read(model, args, kwargs)
            return replace(graph, notes=tuple(notes)) if notes else graph
        except Exception as error:
            notes.append(f"{name}: {_first_line(error)}")
    with _as_value_error(model), _undo_changes(model, runs=True), torch.no_grad():
        notes.append("one run on the inputs: other inputs may go other ways")
        return replace(from_run(model, args, kwargs), notes=tuple(notes))


def _initialize_copy(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.nn.Module:
    """Return a copy of a lazy module, whose parameters a run has initialized. The parameters of the model stay lazy."""
    # Uninitialized buffers cannot be copied.
    lazy: list[Any] = [buffer for buffer in model.buffers() if is_lazy(buffer)]
    fresh = {id(buffer): type(buffer)(device=buffer.device, dtype=buffer.dtype) for buffer in lazy}
    model = copy.deepcopy(model, fresh)
    with _as_value_error(model), torch.random.fork_rng(devices=_devices(model)), torch.no_grad():
        model(*args, **kwargs)
    return model


@contextlib.contextmanager
def _postpone_collection() -> Iterator[None]:
    """Open a block without garbage collection. With all objects of torch, a collection takes as long as a dry run."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextlib.contextmanager
def _as_value_error(model: torch.nn.Module) -> Iterator[None]:
    """Open a block that converts exceptions of a run to a ValueError about the inputs."""
    try:
        yield
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise ValueError(f"expected inputs that {type(model).__name__} can be run on; it raised {got}") from error


def _first_line(error: Exception) -> str:
    """Return the class and the first line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return text if len(text) <= WORDS else f"{text[: WORDS - 1]}…"


def _devices(model: torch.nn.Module) -> list[Any]:
    return sorted({p.device for p in model.parameters() if p.device.type == "cuda"}, key=str)


@contextlib.contextmanager
def _undo_changes(model: torch.nn.Module, runs: bool) -> Iterator[None]:
    """Open a block after which changes to buffers, attributes, lists, dicts and random generators are undone.

    If the block ``runs`` the module, changes to parameters are undone, too, at the cost of their memory. An embedding
    with ``max_norm`` writes its weights when it runs.
    """
    saved = (*model.parameters(), *model.buffers()) if runs else model.buffers()
    tensors = {t: t.detach().clone() for t in saved if not is_lazy(t) and not t.is_meta}
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    # torch.export leaves substitutes for weights in a list of LSTMs.
    containers = [(v, v.copy()) for _, before in attributes for v in before.values() if isinstance(v, (list, dict))]
    try:
        with torch.random.fork_rng(devices=_devices(model)):
            yield
    finally:
        for module, before in attributes:
            vars(module).clear()
            vars(module).update(before)
        for container, content in containers:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)
        with torch.no_grad():
            for tensor, value in tensors.items():
                dense = tensor.layout is torch.strided and not tensor.is_quantized
                # Only if necessary: this invalidates the versions of the tensor that autograd has saved.
                if not dense or not torch.equal(tensor, value):
                    tensor.copy_(value)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Open a block without the warnings and logs of a failing tracer, whose error is in the notes of the graph."""
    loggers = [logging.getLogger(f"torch.{name}") for name in NOISY_LOGGERS]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        # torch.export prints an incomplete graph when it fails.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was
