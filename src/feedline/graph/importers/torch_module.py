"""A `torch.nn.Module` as a graph, by the best importer that can read it.

With inputs: `torch.export`, which sees every operation; where it refuses, `torch.fx`, which sees one way through for
all inputs; where that refuses too (the way depends on data), a run with forward hooks, which sees the way of these
inputs. Without inputs: `torch.fx` without shapes, else the tree of modules, without edges. The graph says which, and
why no better one would do. Neither parameters, buffers nor random generators change.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from feedline.graph.graph import Graph
from feedline.graph.importers.torch_fx import from_export, from_fx
from feedline.graph.importers.torch_parts import arguments
from feedline.graph.importers.torch_run import from_run, from_tree

WORDS = 160  # of a refusal, in characters


def from_module(model: torch.nn.Module, inputs: Any = None) -> Graph:
    """The graph of a module.

    Args:
        model: is left as it is.
        inputs: see `feedline.graph.importers.graph_of`.

    Raises:
        ValueError: the module cannot be run on the inputs; the cause is its own error.
    """
    notes: list[str] = []
    if inputs is None:
        try:
            with _quietly(), _unchanged(model):
                return from_fx(model, None)
        except Exception as error:  # whatever the module's code makes of a tracer
            notes.append(f"torch.fx: {_said(error)}")
        return from_tree(model, (*notes, "the tree of modules, without edges and shapes: pass inputs"))
    args, kwargs = arguments(model, inputs)
    for name, read in (("torch.export", from_export), ("torch.fx", from_fx)):
        try:
            with _quietly(), _unchanged(model):
                graph: Graph = read(model, (args, kwargs), tuple(notes))
            return graph
        except Exception as error:
            notes.append(f"{name}: {_said(error)}")
    try:
        with _unchanged(model), torch.no_grad():
            return from_run(model, args, kwargs, (*notes, "one run on the inputs: other inputs may go other ways"))
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
def _unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Puts back what a run or a tracer leaves behind, in buffers, attributes, lists, dicts and random generators."""
    buffers = {buffer: buffer.detach().clone() for buffer in model.buffers()}
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
            for buffer, value in buffers.items():
                buffer.copy_(value)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the warnings and logs of a tracer that refuses: the graph's notes say why."""
    loggers = [logging.getLogger(f"torch.{name}") for name in ("fx.experimental.symbolic_shapes", "export._trace")]
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
