"""Gradients that are exchanged while backward still runs.

`Gradients` watches the parameters of a trainer. In the last backward pass of a step each gradient is put into its
bucket when it is ready, and a bucket is sent when all of its gradients are ready. When the step ends, most sums have
arrived. A gradient is then a view of its bucket, so nothing is copied back.

Buckets are sent in one order on all ranks, whatever the order in which a rank's gradients become ready. They are laid
out at the first step that is exchanged, by the order in which gradients became ready in it (of the first rank that has
most of them), and again once parameters have moved to another device or dtype. Parameters without a gradient come last.
Nothing is sent before all ranks are known to be making the same step. A rank does not wait for that within its backward
pass.

A gradient that backward does not give (an unused parameter, a rank without data) is put, or found lacking, at the end
of the step. The buckets after it are sent then, too. So unused parameters cost overlap, and nothing else.

The order is a trainer's advice in checkpoints: sums over three ranks and more depend on it in their last bits.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from feedline.collective.exchanges import Announcement
from feedline.collective.flat_buffers import Bucket, lay_out_buckets
from feedline.collective.sums import BucketSums

#: Bytes of the first bucket: the sooner it is full, the sooner the exchange begins.
FIRST_BUCKET_BYTES = 1 << 20
#: Bytes of the other buckets: the last one remains to be sent when backward has ended.
BUCKET_BYTES = 8 << 20


class Gradients:
    """See the module.

    Args:
        parameters: parameters whose gradients are summed.

    Attributes:
        order: indices of the parameters in the order of their gradients in buckets. None: not known yet.
        sums: sums of the buckets. None: not laid out yet.
        armed: whether a step is in progress. Set it to False at its end.
        ready: parameters whose gradients became ready in this step, in that order.
        added: how often backward has added to each parameter's gradient in this step.
        put: whether this rank has put a gradient of each parameter into its bucket in this step.
        announced: announcement to the other ranks in this step. None: not sent yet.
        sent: number of buckets sent in this step.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = list(parameters)
        self.order: list[int] | None = None
        self.sums: BucketSums | None = None
        #: Bucket and slot of each parameter.
        self._places: list[tuple[int, int]] = []
        #: How often backward adds to a gradient in a step: several times if backward is split into several passes.
        self._usual = [1] * len(self._parameters)
        self._lock = threading.Lock()  # backward has a thread for each device
        self.armed = False
        self._announce: Callable[[], Announcement] | None = None
        self._begin([])
        ours = weakref.ref(self)
        handles = [
            parameter.register_post_accumulate_grad_hook(_watch(ours, i))
            for i, parameter in enumerate(self._parameters)
            if parameter.requires_grad and parameter.is_leaf
        ]
        weakref.finalize(self, remove_hooks, handles)

    # ---- a step -------------------------------------------------------------------------------------------------

    def arm(self, announce: Callable[[], Announcement] | None) -> None:
        """Begin a step: the next backward pass is its last.

        Args:
            announce: function that announces the step to the other ranks. None: gradients are not sent before
                `send_rest`.
        """
        if not self._fits():
            self.sums = None
        self._announce = announce if self.sums is not None else None
        self._begin(self.sums.buckets if self.sums is not None else [])
        self.armed = True

    def _begin(self, buckets: Sequence[Bucket]) -> None:
        self.added = [0] * len(self._parameters)
        self.ready: list[int] = []
        self.put = [False] * len(self._parameters)
        self._lacking = [len(bucket.places) for bucket in buckets]
        self._works: list[Any] = []
        self.sent = 0
        self.announced: Announcement | None = None

    def _on_gradient(self, i: int) -> None:
        """Note that backward has added to a gradient."""
        if not self.armed:
            return
        with self._lock:
            self.added[i] += 1
            if self._announce is None or self.sums is None:
                if self.added[i] > 1:
                    self.ready.remove(i)
                self.ready.append(i)
                return
            gradient = self._parameters[i].grad
            if self.added[i] < self._usual[i] or gradient is None or gradient.layout is not torch.strided:
                return  # `send_rest` handles it
            bucket = self._places[i][0]
            if self.put[i]:
                self._check_unsent(i, bucket)
                return
            self._place(i, gradient)
            self._lacking[bucket] -= 1
            if self._lacking[self.sent] == 0:
                if self.announced is None:
                    self.announced = self._announce()
                if self.announced.agreed():
                    self._send()

    def _place(self, i: int, gradient: torch.Tensor) -> None:
        assert self.sums is not None
        bucket, slot = self._places[i]
        self.sums.put(bucket, slot, gradient)
        self.put[i] = True
        if self.sums.in_place:
            self._show(i)

    def _show(self, i: int) -> None:
        """Replace a parameter's gradient by its view of the bucket."""
        assert self.sums is not None
        bucket, slot = self._places[i]
        parameter, view = self._parameters[i], self.sums.buckets[bucket].views[slot]
        if parameter.grad is None or parameter.grad.data_ptr() != view.data_ptr():
            # Not the view itself: `module.to` and other functions assign to `grad.data`, which would move the view
            # elsewhere.
            parameter.grad = view.detach()

    def _fits(self) -> bool:
        """Whether parameters still have the device, dtype and shape of their layout."""
        if self.sums is None:
            return True
        for parameter, (bucket, slot) in zip(self._parameters, self._places, strict=True):
            view = self.sums.buckets[bucket].views[slot]
            if parameter.dtype != view.dtype or parameter.device != view.device or parameter.shape != view.shape:
                return False
        return True

    def _check_unsent(self, i: int, bucket: int) -> None:
        assert self.sums is not None
        if bucket < self.sent or not self.sums.in_place:
            raise RuntimeError(
                f"expected backward to add to the gradient of parameter {i}, of shape "
                f"{tuple(self._parameters[i].shape)}, {self._usual[i]} times, as in the first step, but it added "
                "more once the gradient had been sent; if parts of the model are checkpointed, pass use_reentrant=False"
            )

    def _send(self) -> None:
        """Send full buckets, in their order."""
        assert self.sums is not None
        while self.sent < len(self._lacking) and self._lacking[self.sent] == 0:
            self._works += self.sums.send(self.sent)
            self.sent += 1

    # ---- the end of a step --------------------------------------------------------------------------------------

    def lay_out(self, order: Sequence[int], usual: Sequence[int], make: Callable[[list[Bucket]], BucketSums]) -> None:
        """Lay out buckets.

        Args:
            order: indices of parameters in the order in which gradients become ready. Other parameters come last.
            usual: how often backward adds to each gradient in a step.
            make: function that returns the sums of buckets.
        """
        ordered = set(order)
        unordered = [i for i in reversed(range(len(self._parameters))) if i not in ordered]
        self.order = [*order, *unordered]
        buckets = lay_out_buckets(self._parameters, BUCKET_BYTES, self.order, FIRST_BUCKET_BYTES)
        self._places = [(0, 0)] * len(self._parameters)
        for k, bucket in enumerate(buckets):
            for slot, i in enumerate(bucket.places):
                self._places[i] = k, slot
        self._usual = [max(1, count) for count in usual]
        self.sums = make(buckets)
        self._lacking = [len(bucket.places) for bucket in buckets]

    def send_rest(self) -> list[Any]:
        """Send everything that was not sent yet, once all ranks are known to agree. Returns all works in flight."""
        assert self.sums is not None
        with self._lock, torch.no_grad():
            for i, parameter in enumerate(self._parameters):
                if self.put[i]:
                    continue
                bucket, slot = self._places[i]
                if parameter.grad is None:
                    self.sums.lack(bucket, slot)
                else:
                    self._place(i, parameter.grad)
                self._lacking[bucket] -= 1
            self._send()
        return self._works

    def finish(self, present: Sequence[bool]) -> None:
        """Set gradients to the sums, or to None if no rank has one, so that unused parameters do not decay."""
        assert self.sums is not None
        with torch.no_grad():
            self.sums.finish(lambda i: present[i])
        for bucket in self.sums.buckets:
            for i in bucket.places:
                if present[i]:
                    self._show(i)
                else:
                    self._parameters[i].grad = None


def _watch(ours: weakref.ref[Gradients], i: int) -> Callable[[torch.Tensor], None]:
    def on_gradient(_: torch.Tensor) -> None:
        gradients = ours()
        if gradients is not None:
            gradients._on_gradient(i)

    return on_gradient


def remove_hooks(handles: Sequence[Any]) -> None:
    """Remove hooks of parameters."""
    for handle in handles:
        handle.remove()
