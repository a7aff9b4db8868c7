"""Optimizers of torch, and optimizers written for it, as learners with a clock, schedules of rates and states without
pickle."""

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

#: Options that a trial on a small parameter omits: they depend on the device, or name the parameters.
_NOT_TRIED = frozenset({"params", "param_names", "foreach", "fused", "capturable"})


class TorchLearner(Learner):
    """A learner that updates by a `torch.optim.Optimizer`, which reads the gradients (means by default) from ``.grad``.

    The ``.grad`` of each parameter is restored afterwards. Without scaling, clipping or penalty (``averaged=True`` and
    default options), nothing is copied.

    Args:
        optimizer: optimizer whose groups contain the parameters to be learned. Each group must have a learning rate
            called ``lr``, and a step must not need a closure.
        lr: see `Learner`. The first group follows it. Other groups keep the ratio of their rates to the rate of the
            first group. None means the rates of the optimizer, times `Learner.scale` during a step. ``gradients="sum"``
            does not change them.
        options: further arguments of `Learner`.

    Raises:
        TypeError: not an optimizer, or one that needs a closure.
        ValueError: an optimizer without ``lr``, several groups of which the first has a rate of 0, or an error of
            `Learner`.
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
        """Return the rate of the schedule for the next update, or without one the largest rate of a group."""
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
        rates = self._optimizer_rates()
        self._set_rates([step.rate * r for r in self._ratios] if self._scheduled else [self.scale * r for r in rates])
        before = [parameter.grad for parameter in self._list]
        try:
            for parameter in self._list:
                parameter.grad = None
            for parameter, gradient in zip(batch.parameters, batch.gradients, strict=True):
                parameter.grad = gradient if gradient.dtype is parameter.dtype else gradient.to(parameter.dtype)
            self.optimizer.step()
        finally:
            if not self._scheduled:
                self._set_rates(rates)
            for parameter, gradient in zip(self._list, before, strict=True):
                parameter.grad = gradient
        return batch.numbers

    def _set_rates(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)  # captured graphs hold on to the tensor
            else:
                group["lr"] = rate

    def _rule_state(self) -> tuple[dict[str, torch.Tensor], Any]:
        saved = self.optimizer.state_dict()
        tensors: dict[str, torch.Tensor] = {}
        names = list(self._parameters)
        state = {names[place]: _flatten(values, names[place], tensors) for place, values in saved["state"].items()}
        groups = [_flatten(group, f"group {k}", tensors) for k, group in enumerate(saved["param_groups"])]
        return tensors, {"state": state, "groups": groups}

    def _check_rule_state(self, tensors: Mapping[str, torch.Tensor], rule_state: Any) -> Callable[[], None]:
        places = {name: place for place, name in enumerate(self._parameters)}
        kind = type(self.optimizer).__name__
        try:
            state = {places[name]: _unflatten(values, tensors) for name, values in rule_state["state"].items()}
            groups = self._complete_groups([_unflatten(group, tensors) for group in rule_state["groups"]])
            for group in groups:
                for place in group["params"]:
                    if place in state:
                        self._check_state(group, self._list[place], state[place])
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise StateError(f"the state does not fit {kind}: {shown(error, 200)}") from error

        def restore() -> None:
            try:
                self.optimizer.load_state_dict({"state": state, "param_groups": groups})
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise StateError(f"the state does not fit {kind}: {shown(error, 200)}") from error

        return restore

    def _complete_groups(self, groups: list[Any]) -> list[dict[str, Any]]:
        """Return saved groups, with the options of the optimizer where they lack some, as versions of torch differ.

        Raises:
            ValueError: the groups differ from the groups of the optimizer in number or kinds of options.
        """
        current = self.optimizer.state_dict()["param_groups"]
        if len(groups) != len(current):
            raise ValueError(f"{len(groups)} groups of parameters, expected {len(current)}")
        for saved, group in zip(groups, current, strict=True):
            if saved["params"] != group["params"]:
                raise ValueError(f"parameters {shown(saved['params'], 80)}, expected {group['params']}")
            for key in saved.keys() & group.keys():
                if not _is_same_kind(saved[key], group[key]):
                    raise ValueError(f"`{key}` of {shown(saved[key], 40)}, expected one like {shown(group[key], 40)}")
            on_cpu = any(self._list[place].device.type == "cpu" for place in group["params"])
            if saved.get("capturable") and not group.get("capturable") and on_cpu:
                raise ValueError("`capturable`, with which it cannot update parameters on the CPU")
            kind = type(self.optimizer)
            if _expected_state(kind, group, 1) is not None and _expected_state(kind, {**group, **saved}, 1) is None:
                raise ValueError(f"options {shown(saved, 200)}, with which it cannot step")
        return [{**group, **saved} for saved, group in zip(groups, current, strict=True)]

    def _check_state(self, group: Mapping[str, Any], parameter: torch.Tensor, state: Mapping[str, Any]) -> None:
        """Raise ValueError for a state that the optimizer, if it is one of torch, would not keep of this parameter."""
        if not isinstance(state, Mapping):
            raise ValueError(f"{shown(state, 40)} for a parameter of shape {tuple(parameter.shape)}")
        if not state:
            return
        # With at least one, a number for each element and a number for all elements differ in shape.
        dims = max(1, parameter.dim())
        for name, like in (_expected_state(type(self.optimizer), group, dims) or {}).items():
            value = state[name]
            tensor = isinstance(value, torch.Tensor)
            if not isinstance(like, torch.Tensor) or like.dim() == 0:
                number = type(value) in (int, float) or (tensor and value.numel() == 1)
                fits = not isinstance(like, (int, float, torch.Tensor)) or (number and 0 <= float(value) < math.inf)
            elif like.shape == (2,) * dims:
                fits = tensor and value.shape == parameter.shape
            else:
                fits = tensor and value.dim() == like.dim()
            if not fits:
                got = f"a tensor of shape {tuple(value.shape)}" if tensor else shown(value, 40)
                raise ValueError(f"`{name}` of a parameter of shape {tuple(parameter.shape)} is {got}")


def _expected_state(kind: type[torch.optim.Optimizer], group: Mapping[str, Any], dims: int) -> Mapping[str, Any] | None:
    """Return the state of an optimizer for a parameter of size 2 in every dimension. None unless it is one of torch."""
    if not kind.__module__.startswith("torch.optim"):
        return None
    parameter = torch.zeros((2,) * dims, requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    options = {key: value for key, value in group.items() if key not in _NOT_TRIED}
    try:
        optimizer: Any = kind([{**options, "params": [parameter]}])
        optimizer.step()
        optimizer.step()  # an update from the state of the first
    except Exception:  # it does not accept these options, or such gradients
        return None
    state: Mapping[str, Any] = optimizer.state[parameter]
    return state


def _parameters(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the parameters of all groups, in the order of the state, with names if the optimizer has them."""
    parameters: list[Any] = []
    for group in optimizer.param_groups:
        names = group.get("param_names")
        parameters += zip(names, group["params"], strict=True) if names else group["params"]
    return parameters


def _flatten(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a value in JSON types. Its tensors are put into ``tensors`` under their paths."""
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return {"tensor": path}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_flatten(item, f"{path}.{k}", tensors) for k, item in enumerate(value)]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"mapping": {key: _flatten(item, f"{path}.{key}", tensors) for key, item in value.items()}}
    raise StateError(
        f"the optimizer keeps {path} as {type(value).__name__}, which a state cannot hold; "
        "expected tensors, numbers, text, and lists, tuples and mappings of them"
    )


def _unflatten(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Restore a value from the result of `_flatten`. Tensors are copied."""
    if not isinstance(value, Mapping):
        if isinstance(value, (list, tuple)) or (type(value) is int and abs(value) >= 2**63):
            raise ValueError(
                f"expected a number, text, or an entry named tensor, list, tuple or mapping, got {shown(value, 40)}"
            )
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content].clone()
    if kind == "mapping":
        return {key: _unflatten(item, tensors) for key, item in content.items()}
    if kind not in ("list", "tuple"):
        raise ValueError(f"expected a tensor, mapping, list or tuple, got {shown(kind, 40)}")
    items = [_unflatten(item, tensors) for item in content]
    return items if kind == "list" else tuple(items)


def _is_same_kind(saved: Any, current: Any) -> bool:
    """Return whether a saved option is of the same kind as the current one."""
    if isinstance(current, (list, tuple)):
        return type(saved) is type(current) and len(saved) == len(current) and all(map(_is_same_kind, saved, current))
    numbers = (int, float, torch.Tensor)
    if isinstance(current, numbers) and not isinstance(current, bool):
        return isinstance(saved, numbers) and not isinstance(saved, bool)
    switches = (bool, type(None))
    return type(saved) is type(current) or (isinstance(current, switches) and isinstance(saved, switches))
