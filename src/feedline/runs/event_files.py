"""Curves from event files of TensorBoard, written by feedline or by any other program. Requires tensorboard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from feedline.errors import install_line

PATTERN = "*tfevents*"
# Names of curves by the tags of feedline's reporter. Other curves keep their tags as names.
_FEEDLINE_CURVES: Mapping[str, str] = {
    "summary/avg_loss": "training loss",
    "summary/avg_metric": "training metric",
    "validation/avg_loss": "validation loss",
    "validation/avg_metric": "validation metric",
    "test/avg_loss": "test loss",
    "test/avg_metric": "test metric",
    "learner0/rate": "learning rate",
    "feed/waiting": "waiting for data",
}
Curve = list[tuple[int, float]]


def holds_events(path: Path) -> bool:
    """Return whether a path is an event file, or a folder with some."""
    if path.is_file():
        return "tfevents" in path.name
    return path.is_dir() and any(path.glob(PATTERN))


def event_curves(path: Path) -> tuple[dict[str, Curve], bool]:
    """Return the scalars of event files as (step, value) by name, and whether feedline wrote them.

    The steps of feedline are label samples. Points that a resumed run wrote again count once, with the last value.
    Values need not be finite.

    Raises:
        ModuleNotFoundError: tensorboard is not installed (``pip install tensorboard``).
        ValueError: there is no scalar.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"tensorboard is not installed; run: {install_line('tensorboard')}") from error
    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    curves: dict[str, Curve] = {}
    for tag in events.Tags()["scalars"]:
        curves[tag] = _last_values([(event.step, float(event.value)) for event in events.Scalars(tag)])
    for tag in events.Tags()["tensors"]:  # newer writers store scalars as tensors
        arrays = [(event.step, make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]
        curves[tag] = _last_values([(step, float(a)) for step, a in arrays if a.size == 1 and a.dtype.kind in "fiu"])
    curves = {tag: curve for tag, curve in curves.items() if curve}
    if not curves:
        raise ValueError(f"expected event files with scalars, got none in {path}")
    by_feedline = "summary/avg_loss" in curves
    curves_by_name = {_FEEDLINE_CURVES.get(tag, tag) if by_feedline else tag: curve for tag, curve in curves.items()}
    if by_feedline and "waiting for data" in curves_by_name:
        curves_by_name["waiting for data"] = [(step, 100 * value) for step, value in curves_by_name["waiting for data"]]
    return curves_by_name, by_feedline


def _last_values(curve: Curve) -> Curve:
    return sorted(dict(curve).items())
