"""Any optimizer of torch (or written for it) as a learner, with the clock, rates and pickle-free states of learners."""

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

#: Options for a parameter's device, or for other parameters.
_NOT_TRIED = frozenset({"params", "param_names", "foreach", "fused", "capturable"})


class TorchLearner(Learner):
    """Updates by a `torch.optim.Optimizer`, which sees the gradients (means by default) as ``.grad``.

    A parameter's ``.grad`` is restored afterwards. Without scaling, clipping or penalty (``averaged=True`` and default
    options), nothing is copied.

    Args:
        optimizer: over the parameters to be learned, in its groups. It must have a learning rate called ``lr``, and
            do its step without a closure.
        lr: as of `Learner`. The first group follows it. Other groups keep the ratio of their rates to the first's.
            None: the optimizer's rates, times `Learner.scale` while it steps. ``gradients="sum"`` does not change them.
        options: further arguments of `Learner`.

    Raises:
        TypeError: no optimizer, or one that needs a closure.
        ValueError: an optimizer without ``lr``, or groups of which the first has rate 0, or see `Learner`.
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
        """Rate of the schedule for the next update. Without one, the largest rate of the optimizer's groups."""
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

    def _saved(self) -> tuple[dict[str, torch.Tensor], Any]:
        saved = self.optimizer.state_dict()
        tensors: dict[str, torch.Tensor] = {}
        names = list(self._parameters)
        state = {names[place]: _flat(values, names[place], tensors) for place, values in saved["state"].items()}
        groups = [_flat(group, f"group {k}", tensors) for k, group in enumerate(saved["param_groups"])]
        return tensors, {"state": state, "groups": groups}

    def _restored(self, tensors: Mapping[str, torch.Tensor], rule_state: Any) -> Callable[[], None]:
        places = {name: place for place, name in enumerate(self._parameters)}
        kind = type(self.optimizer).__name__
        try:
            state = {places[name]: _unflat(values, tensors) for name, values in rule_state["state"].items()}
            groups = self._checked_groups([_unflat(group, tensors) for group in rule_state["groups"]])
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
        """Return saved groups that fit the optimizer's groups in number and kinds of options, else raise ValueError.

        Versions of torch differ in options: the optimizer's options replace missing ones.
        """
        current = self.optimizer.state_dict()["param_groups"]
        if len(groups) != len(current):
            raise ValueError(f"{len(groups)} groups of parameters, expected {len(current)}")
        for saved, group in zip(groups, current, strict=True):
            if saved["params"] != group["params"]:
                raise ValueError(f"parameters {shown(saved['params'], 80)}, expected {group['params']}")
            for key in saved.keys() & group.keys():
                if not _alike(saved[key], group[key]):
                    raise ValueError(
                        f"`{key}` of {shown(saved[key], 40)}, expected something like {shown(group[key], 40)}"
                    )
            on_cpu = any(self._list[place].device.type == "cpu" for place in group["params"])
            if saved.get("capturable") and not group.get("capturable") and on_cpu:
                raise ValueError("`capturable`, with which it cannot update parameters on the CPU")
            kind = type(self.optimizer)
            if _kept(kind, group, 1) is not None and _kept(kind, {**group, **saved}, 1) is None:
                raise ValueError(f"options {shown(saved, 200)}, with which it cannot step")
        return [{**group, **saved} for saved, group in zip(groups, current, strict=True)]

    def _check_kept(self, group: Mapping[str, Any], parameter: torch.Tensor, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless it is a state that one of torch's optimizers would keep of a parameter."""
        if not isinstance(state, Mapping):
            raise ValueError(f"{shown(state, 40)} for a parameter of shape {tuple(parameter.shape)}")
        if not state:
            return
        dimensions = max(1, parameter.dim())  # so that a number for each element has another shape than one for all
        for name, like in (_kept(type(self.optimizer), group, dimensions) or {}).items():
            value = state[name]
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
    """Return the state of a torch optimizer for a parameter of size 2 in every dimension. None if it is not torch's."""
    if not kind.__module__.startswith("torch.optim"):
        return None
    parameter = torch.zeros((2,) * dimensions, requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    options = {key: value for key, value in group.items() if key not in _NOT_TRIED}
    try:
        optimizer: Any = kind([{**options, "params": [parameter]}])
        optimizer.step()
        optimizer.step()  # an update from the kept state
    except Exception:  # it cannot learn by these options, or not from such gradients
        return None
    state: Mapping[str, Any] = optimizer.state[parameter]
    return state


def _parameters(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the parameters of all groups, in the order of the optimizer's state, with names if it has them."""
    parameters: list[Any] = []
    for group in optimizer.param_groups:
        names = group.get("param_names")
        parameters += zip(names, group["params"], strict=True) if names else group["params"]
    return parameters


def _flat(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return JSON types for a value. Tensors in it are put into ``tensors`` under their path."""
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
    """Return the argument of `_flat`. Tensors are copies."""
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
        return {key: _unflat(item, tensors) for key, item in content.items()}
    if kind not in ("list", "tuple"):
        raise ValueError(f"expected a tensor, mapping, list or tuple, got {shown(kind, 40)}")
    items = [_unflat(item, tensors) for item in content]
    return items if kind == "list" else tuple(items)


def _alike(saved: Any, current: Any) -> bool:
    """Return whether a saved option is of the kind of the optimizer's option."""
    if isinstance(current, (list, tuple)):
        return type(saved) is type(current) and len(saved) == len(current) and all(map(_alike, saved, current))
    numbers = (int, float, torch.Tensor)
    if isinstance(current, numbers) and not isinstance(current, bool):
        return isinstance(saved, numbers) and not isinstance(saved, bool)
    switches = (bool, type(None))
    return type(saved) is type(current) or (isinstance(current, switches) and isinstance(saved, switches))
