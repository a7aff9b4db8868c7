"""Any optimizer of torch (or written for it) as a learner: its rule, our clock, rates and states without pickle."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from feedline.errors import StateError, shown
from feedline.train.learner import Learner, Step
from feedline.train.parameters import ParameterGroup
from feedline.train.schedules import Schedule, Values

#: Options that belong to a parameter's device, or to other parameters.
_NOT_TRIED = frozenset({"params", "param_names", "foreach", "fused", "capturable"})


class TorchLearner(Learner):
    """Updates by a `torch.optim.Optimizer`, which sees the gradients (means by default) as ``.grad``.

    A parameter's ``.grad`` is restored afterwards. Without scaling, clipping or penalty (``averaged=True`` and default
    options), nothing is copied.

    Args:
        optimizer: over the parameters to be learned, in its groups. It must have a learning rate called ``lr``, and
            do its step without a closure.
        lr: as of `Learner`. The first group follows it; the others keep the ratio of their rates to the first's.
            None: rates are the optimizer's own, times `Learner.scale` while it steps; ``gradients="sum"`` does not
            change them.
        options: further arguments of `Learner`.

    Raises:
        TypeError: no optimizer, or one that needs a closure.
        ValueError: an optimizer without ``lr``, or groups of which the first has rate 0; what `Learner` raises.
    """

    takes_sparse = True
    whole = True

    def __init__(self, optimizer: torch.optim.Optimizer, lr: Schedule | Values | None = None, **options: Any) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"expected a torch.optim.Optimizer, got {type(optimizer).__name__}")
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise TypeError(f"expected an optimizer that steps without a closure, got {type(optimizer).__name__}")
        if not all("lr" in group for group in optimizer.param_groups):
            raise ValueError(f"expected a learning rate 'lr' in all groups of {type(optimizer).__name__}")
        self.optimizer, self._follows = optimizer, lr is not None
        self.rule = f"torch.{type(optimizer).__name__}"
        rates = self._optimizer_rates()
        super().__init__(_parameters(optimizer), max(rates) if lr is None else lr, **options)
        if len(rates) > 1 and rates[0] == 0:
            raise ValueError(f"expected the first group's rate to be above 0, got rates {rates}: the others follow it")
        self._ratios = [1.0] if len(rates) == 1 else [rate / rates[0] for rate in rates]

    def learning_rate(self) -> float:
        """What the schedule says for the next update; without one, the largest rate of the optimizer's groups."""
        return super().learning_rate() if self._scheduled else self._rate(1)

    @property
    def _scheduled(self) -> bool:
        return self._follows or self._lr_was_reset

    def _optimizer_rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def forget(self) -> None:
        """See `Learner`."""
        self.optimizer.state.clear()

    def _rate(self, samples: int) -> float:
        return super()._rate(samples) if self._scheduled else max(self._optimizer_rates()) * self.scale

    def _apply(self, batch: ParameterGroup, step: Step) -> tuple[float, ...]:
        own = self._optimizer_rates()
        self._set_rates([step.rate * r for r in self._ratios] if self._scheduled else [self.scale * r for r in own])
        before = [parameter.grad for parameter in self._list]
        try:
            for parameter in self._list:
                parameter.grad = None
            for parameter, gradient in zip(batch.parameters, batch.gradients, strict=True):
                parameter.grad = gradient if gradient.dtype is parameter.dtype else gradient.to(parameter.dtype)
            self.optimizer.step()
        finally:
            if not self._scheduled:
                self._set_rates(own)
            for parameter, gradient in zip(self._list, before, strict=True):
                parameter.grad = gradient
        return batch.numbers

    def _set_rates(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)  # captured graphs hold on to the tensor
            else:
                group["lr"] = rate

    def _saved(self) -> tuple[dict[str, torch.Tensor], Any]:
        saved = self.optimizer.state_dict()
        tensors: dict[str, torch.Tensor] = {}
        names = list(self._parameters)
        state = {names[place]: _flat(held, names[place], tensors) for place, held in saved["state"].items()}
        groups = [_flat(group, f"group {k}", tensors) for k, group in enumerate(saved["param_groups"])]
        return tensors, {"state": state, "groups": groups}

    def _restored(self, tensors: Mapping[str, torch.Tensor], own: Any) -> Callable[[], None]:
        places = {name: place for place, name in enumerate(self._parameters)}
        kind = type(self.optimizer).__name__
        try:
            state = {places[name]: _unflat(held, tensors) for name, held in own["state"].items()}
            groups = self._checked_groups([_unflat(group, tensors) for group in own["groups"]])
            for group in groups:
                for place in group["params"]:
                    if place in state:
                        self._check_kept(group, self._list[place], state[place])
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise StateError(f"the state does not fit {kind}: {shown(error, 200)}") from error

        def restore() -> None:
            try:
                self.optimizer.load_state_dict({"state": state, "param_groups": groups})
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise StateError(f"the state does not fit {kind}: {shown(error, 200)}") from error

        return restore

    def _checked_groups(self, groups: list[Any]) -> list[dict[str, Any]]:
        """ValueError unless they are as many as the optimizer's, with options of the same kinds of values.

        Versions of torch differ in options: those that are missing are the optimizer's own.
        """
        current = self.optimizer.state_dict()["param_groups"]
        if len(groups) != len(current):
            raise ValueError(f"{len(groups)} groups of parameters, expected {len(current)}")
        for saved, own in zip(groups, current, strict=True):
            if saved["params"] != own["params"]:
                raise ValueError(f"parameters {shown(saved['params'], 80)}, expected {own['params']}")
            for key in saved.keys() & own.keys():
                if not _alike(saved[key], own[key]):
                    raise ValueError(
                        f"`{key}` of {shown(saved[key], 40)}, expected something like {shown(own[key], 40)}"
                    )
            on_cpu = any(self._list[place].device.type == "cpu" for place in own["params"])
            if saved.get("capturable") and not own.get("capturable") and on_cpu:
                raise ValueError("`capturable`, by which it cannot learn parameters on the CPU")
            kind = type(self.optimizer)
            if _kept(kind, own, 1) is not None and _kept(kind, {**own, **saved}, 1) is None:
                raise ValueError(f"options {shown(saved, 200)}, which it cannot learn by")
        return [{**own, **saved} for saved, own in zip(groups, current, strict=True)]

    def _check_kept(self, group: Mapping[str, Any], parameter: torch.Tensor, held: Mapping[str, Any]) -> None:
        """ValueError unless it is what the optimizer would keep of a parameter; of torch's own, that is known."""
        if not isinstance(held, Mapping):
            raise ValueError(f"{shown(held, 40)} for a parameter of shape {tuple(parameter.shape)}")
        if not held:
            return
        dimensions = max(1, parameter.dim())  # in which what is a number each and what is one for all look different
        for name, like in (_kept(type(self.optimizer), group, dimensions) or {}).items():
            value = held[name]
            tensor = isinstance(value, torch.Tensor)
            if not isinstance(like, torch.Tensor) or like.dim() == 0:
                number = type(value) in (int, float) or (tensor and value.numel() == 1)
                fits = not isinstance(like, (int, float, torch.Tensor)) or (number and 0 <= float(value) < math.inf)
            elif like.shape == (2,) * dimensions:
                fits = tensor and value.shape == parameter.shape
            else:
                fits = tensor and value.dim() == like.dim()
            if not fits:
                got = f"a tensor of shape {tuple(value.shape)}" if tensor else shown(value, 40)
                raise ValueError(f"`{name}` of a parameter of shape {tuple(parameter.shape)} is {got}")


def _kept(kind: type[torch.optim.Optimizer], group: Mapping[str, Any], dimensions: int) -> Mapping[str, Any] | None:
    """Return the state of a torch optimizer for a parameter of size 2 in every dimension; None if it is not torch's."""
    if not kind.__module__.startswith("torch.optim"):
        return None
    parameter = torch.zeros((2,) * dimensions, requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    options = {key: value for key, value in group.items() if key not in _NOT_TRIED}
    try:
        optimizer: Any = kind([{**options, "params": [parameter]}])
        optimizer.step()
        optimizer.step()  # what it does with what it keeps
    except Exception:  # it cannot learn by these options, or not from such gradients
        return None
    kept: Mapping[str, Any] = optimizer.state[parameter]
    return kept


def _parameters(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The parameters of all groups, in the order of the optimizer's own state; named if the optimizer knows names."""
    found: list[Any] = []
    for group in optimizer.param_groups:
        names = group.get("param_names")
        found += zip(names, group["params"], strict=True) if names else group["params"]
    return found


def _flat(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """JSON types for a value; tensors in it are put into ``tensors`` under their path."""
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return {"tensor": path}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_flat(item, f"{path}.{k}", tensors) for k, item in enumerate(value)]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"mapping": {key: _flat(item, f"{path}.{key}", tensors) for key, item in value.items()}}
    raise StateError(
        f"the optimizer keeps {path} as {type(value).__name__}, which a state cannot hold; "
        "expected tensors, numbers, text, and lists, tuples and mappings of them"
    )


def _unflat(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """What `_flat` was given; tensors are copies."""
    if not isinstance(value, Mapping):
        if isinstance(value, (list, tuple)) or (type(value) is int and abs(value) >= 2**63):
            raise ValueError(
                f"expected a number, text, or what is named tensor, list, tuple or mapping, got {shown(value, 40)}"
            )
        return value
    ((kind, held),) = value.items()
    if kind == "tensor":
        return tensors[held].clone()
    if kind == "mapping":
        return {key: _unflat(item, tensors) for key, item in held.items()}
    if kind not in ("list", "tuple"):
        raise ValueError(f"expected a tensor, mapping, list or tuple, got {shown(kind, 40)}")
    items = [_unflat(item, tensors) for item in held]
    return items if kind == "list" else tuple(items)


def _alike(saved: Any, own: Any) -> bool:
    """Whether a saved option is of the kind of the optimizer's own."""
    if isinstance(own, (list, tuple)):
        return type(saved) is type(own) and len(saved) == len(own) and all(map(_alike, saved, own))
    numbers = (int, float, torch.Tensor)
    if isinstance(own, numbers) and not isinstance(own, bool):
        return isinstance(saved, numbers) and not isinstance(saved, bool)
    switches = (bool, type(None))
    return type(saved) is type(own) or (isinstance(own, switches) and isinstance(saved, switches))
